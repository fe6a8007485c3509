# The common setup for the commands of all pages, and the functions that run a command of a page.

# A page's own file replaces this function: it is called before each command, and creates what the surrounding text
# describes.
before() { :; }

# Runs the command on stdin as it is printed in this line of the page, in this shell. With ANSWER, the command has a
# terminal, in which that answer is typed. With UNTIL, the command is ended with Ctrl-C once the command UNTIL succeeds.
run() {
    local line=$1 text start
    IFS= read -r -d '' text || true
    text=${text%$'\n'}
    echo "line $line: $text"
    ANSWER='' UNTIL=''
    before "$text" || { echo "before line $line: failed"; exit 1; }
    start=${EPOCHREALTIME/./}
    if [ -n "$ANSWER" ]; then
        script --quiet --return --command "$text" /dev/null <<<"$ANSWER" >"$OUT/$line.out" 2>"$OUT/$line.err"
    elif [ -n "$UNTIL" ]; then
        until_enough "$text" >"$OUT/$line.out" 2>"$OUT/$line.err"
    else
        eval "$text" </dev/null >"$OUT/$line.out" 2>"$OUT/$line.err"
    fi
    echo $? >"$OUT/$line.status"
    echo "took $(((${EPOCHREALTIME/./} - start) / 1000)) ms"
}

# Prepares for a command that is not run here.
skip() {
    local line=$1 text
    IFS= read -r -d '' text || true
    text=${text%$'\n'}
    before "$text" || { echo "before line $line: failed"; exit 1; }
}

# Waits up to three minutes until a command succeeds.
until_done() {
    for _ in $(seq 1800); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    echo "fails for three minutes: $*"
    "$@"
}

# Runs a command until UNTIL succeeds, as in a shell with job control, where Ctrl-C reaches it.
until_enough() {
    local code=0
    set -m
    (eval "$1") </dev/null &
    set +m
    until_done eval "$UNTIL" || code=1
    kill -INT -- "-$!" && wait $! || code=$?
    return $code
}

# A file of this size with something in it.
image() {
    mkdir -p "$(dirname "$1")"
    [ -e "$1" ] || { head -c 1M /dev/urandom >"$1" && truncate -s "$2" "$1"; }
}

# A daemon with a pool 'main' of 256 MiB, and with what else is given for its configuration.
daemon() {
    local file=/etc/haversack/haversackd.toml
    sed -i '/^\[sandbox\]/,/^$/d' $file
    printf '%s\n' "$@" >>$file
    grep -q '^\[\[pool\]\]' $file || haversack pool create main /var/lib/haversack/pool.img --size 256M --configure >/dev/null
    restart
}

# Starts the daemon with the configuration as it is, in place of the one that runs.
restart() {
    if haversack stop 2>/dev/null; then wait "$daemon"; fi
    haversackd >>"$OUT/haversackd.log" 2>&1 &
    daemon=$!
    until_done haversack status
}

# Blocks of a disk are read and written.
use() {
    qemu-io -f raw -c 'read 0 1M' -c 'read 0 1M' -c 'write 4M 1M' "nbd+unix:///$1?socket=/run/haversack/nbd.sock" >/dev/null
}

# A trace of this many requests, at 500 or as many a second, to a volume with the file's name.
trace() {
    haversack trace generate zipf --blocks 4k --requests "$2" --theta 0.9 --read 0.6 --size 4k:0.7,16k:0.3 --rate "${3:-500}" \
        --seed 1 --force -o generated.csv >/dev/null
    sed -i "s/^\([0-9]*\),[^,]*/\1,${1%%.*}/" generated.csv
    haversack trace convert --force generated.csv "$1" >/dev/null
    rm generated.csv
}

# The mixes of the repository, with a hundredth of their requests.
small_mixes() {
    mkdir mixes
    for mix in "$WORKSPACE"/mixes/*.toml; do
        sed -E 's/requests = ([0-9]+)00\b/requests = \1/g; s|"../../shared/traces/apps/|"../|' "$mix" >"mixes/$(basename "$mix")"
    done
}

# Makes a binary trace with the blktrace or the vSCSI format's records: python's struct, and what each record has of its number n.
records() {
    python3 -c "import struct, sys
for n in range(20000): sys.stdout.buffer.write(struct.pack('$1', $2))"
}
