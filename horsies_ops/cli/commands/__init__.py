"""The commands; a module is loaded only when one of its commands runs. The table of them is in `options`."""
