"""Reading and writing: typed JSON, whole files, tensors, downloads, pictures, progress."""
