"""The sparse matrix: how one is made, checked, transposed, normalised and converted from what others hold."""
