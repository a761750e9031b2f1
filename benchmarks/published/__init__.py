"""Two published models, measured on text of five kinds."""
