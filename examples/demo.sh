#!/bin/sh
# A database of its own, set up and shown, and gone again at the end. `make demo` runs it.
set -eu

# The demo is the same for everyone, whatever their own settings are.
for name in $(env | sed -n 's/^\(HORSIES_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
unset DATABASE_URL || true

folder=$(mktemp -d)
cd "$folder"
chmod 755 "$folder" # as root the server runs as another user, who must be able to enter
export HORSIES_BROKER__DATABASE_URL="embedded://$folder/embedded"

leave() {
    cd /
    horsies db stop --force || true
    rm -rf "$folder"
}
trap leave EXIT
trap 'exit 130' INT TERM

horsies db start
horsies db migrate
echo
horsies db status
echo
