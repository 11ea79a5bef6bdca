"""Multimodal models behind one interface: encoding, null images, and access to the layers and the head."""
