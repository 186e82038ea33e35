"""Tree and path decompositions, and the recursions over them."""
