#!/bin/sh
# The sample app on a database of its own: a worker runs its tasks, and all is gone again at the end. `make demo` runs it.
set -eu

# The demo is the same for everyone, whatever their own settings are.
for name in $(env | sed -n 's/^\(HORSIES_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
unset DATABASE_URL || true

folder=$(mktemp -d)
chmod 755 "$folder" # as root the server runs as another user, who must be able to enter
cd "$folder"
cat > horsies.toml <<SETTINGS
[app]
locator = "horsies.sample:app"
[broker]
database_url = "embedded://$folder/embedded"
SETTINGS
worker=

leave() {
    if [ -n "$worker" ]; then
        kill -TERM "$worker" 2> /dev/null || true
        wait "$worker" || true
    fi
    cd /
    horsies db stop --force --quiet --config "$folder/horsies.toml" || true
    rm -rf "$folder"
}
trap leave EXIT
trap 'exit 130' INT TERM

send() {
    printf '%-22s ' "$1"
    horsies task send "$@" --quiet --wait || true
}

horsies db start
horsies db migrate --quiet > /dev/null
horsies worker --processes 2 --loglevel WARNING &
worker=$!
echo
send sample.send_email --args '["ada@example.org", "Hello"]'
send sample.send_email --args '["nobody", "Hello"]'
send sample.resize --kwargs '{"image": {"width": 4000, "height": 3000}}'
send sample.fetch_rate --args '["EUR"]'
send sample.charge_card --kwargs '{"amount": "9.99", "succeeds_on_attempt": 2}'
echo
horsies task list
echo
