"""Results that travel: bundles out and in, marks of trust, runs repeated, folders made one. Nobody's code but fedbench's runs."""
