"""What the screens are made of. A widget shows what it is given; it asks nobody for data."""
