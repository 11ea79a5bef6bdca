"""Reading and writing: typed JSON, atomic files, tensors, downloads, pictures, progress."""
