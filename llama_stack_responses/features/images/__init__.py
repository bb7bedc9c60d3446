"""Image generation: the tool `image_generation`, and the client of the image server that it uses."""
