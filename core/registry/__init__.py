"""What is installed: plugins, their components, and the digests of their code."""
