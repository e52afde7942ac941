"""One module a command or group of commands; loaded only when that command is asked for."""
