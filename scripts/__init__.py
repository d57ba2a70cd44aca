"""Programs that make pages and pictures of the documentation, and set up the environment."""
