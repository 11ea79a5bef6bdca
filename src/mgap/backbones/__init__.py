"""Multimodal models behind one interface: encode, null images, where the layers and the head are."""
