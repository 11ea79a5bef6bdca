"""RePOPE (Neuhaus and Hein, 2025): COCO's POPE, labelled again by hand."""
