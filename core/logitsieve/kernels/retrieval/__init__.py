"""Hash tables and low-rank previews that select rows of W."""
