"""What data-set plugins share: downloads, archives, caches, folders, images."""
