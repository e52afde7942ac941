"""Widgets of the screens. A widget shows the data it is given and never queries the data source."""
