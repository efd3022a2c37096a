"""Who holds which samples: partitions, groups of clients, and whom the attacks are asked about."""
