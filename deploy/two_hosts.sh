#!/usr/bin/env bash
# Two hosts on one machine: runs COMMAND on the first node of a two-node Ray cluster, then takes all of it away.
#
#   deploy/two_hosts.sh [--clock-offset SECONDS] COMMAND [ARGUMENT]...
#
# A host has its own network, name, processes, /dev/shm and $TMPDIR: Linux namespaces, joined by a veth pair.  The monotonic
# and boot clocks of the second are ahead by SECONDS.  COMMAND finds the cluster at $EMU_ADDRESS and the token, a private file,
# by RAY_AUTH_TOKEN_PATH.  Its exit status is the script's.  Needs root, util-linux, iproute2, and ray on the PATH.
# Namespaces end with their processes, and those with the script, however it ends.
set -euo pipefail

readonly NETWORK=10.77.0 PORT=6379 LINK=emu0 WAIT_S=60

die() {
    echo "two_hosts.sh: $1" >&2
    exit "${2-1}"
}

within() {  # LIMIT_S COMMAND...: until it succeeds
    local end=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        ((SECONDS < end)) || die "gave up on: $*"
        sleep 0.05
    done
}

join_network() {  # NUMBER: what a host does first
    hostname "emu-host$1"
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount -t tmpfs -o mode=0700 tmpfs "$TMPDIR"
    ip link set lo up
    : > "$SHARED/up.$1"
    within "$WAIT_S" ip link show "$LINK"
    ip address add "$NETWORK.$1/24" dev "$LINK"
    ip link set "$LINK" up
}

start_ray() {  # NUMBER OPTION...
    local number=$1
    shift
    ray start "$@" --node-ip-address "$NETWORK.$number" --num-cpus 1 --object-store-memory 100000000 \
        --disable-usage-stats > "$TMPDIR/start.log" 2>&1 || die "ray does not start: $(tail -n 1 "$TMPDIR/start.log")"
    : > "$SHARED/ray.$number"
}

first_host() {  # COMMAND [ARGUMENT]...
    join_network 1
    start_ray 1 --head --port "$PORT" --include-dashboard false
    within "$WAIT_S" test -e "$SHARED/ray.2"
    "$@"
}

second_host() {
    join_network 2
    within "$WAIT_S" test -e "$SHARED/ray.1"
    start_ray 2 --address "$EMU_ADDRESS"
    sleep infinity
}

new_host() {  # [UNSHARE_OPTION]... COMMAND...
    exec setpriv --pdeathsig KILL unshare --net --uts --mount --pid --fork --kill-child --mount-proc "$@"
}

take_away() {
    set +e
    trap '' TERM INT
    exec 2> /dev/null  # where bash would tell of what is killed here
    kill -KILL $(jobs -p)
    wait
    rm -rf "$SHARED"
}

main() {
    local clocks=()
    if [[ ${1-} == --clock-offset ]]; then
        [[ ${2-} =~ ^[0-9]{1,8}$ ]] || die "--clock-offset ${2-}: give whole seconds, from 0 to 99999999" 2
        clocks=(--time --monotonic "$2" --boottime "$2")
        shift 2
    fi
    (($#)) || die "usage: two_hosts.sh [--clock-offset SECONDS] COMMAND [ARGUMENT]..." 2
    for tool in ray ip setpriv unshare; do
        type -P "$tool" > /dev/null || die "$tool is not on the PATH" 2
    done
    SHARED=$(mktemp -d /tmp/two-hosts.XXXX)  # short: the paths of sockets have 107 characters at most
    trap take_away EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    mkdir "$SHARED/host"  # each host mounts a file system of its own there
    export SHARED TMPDIR=$SHARED/host RAY_TMPDIR=$SHARED/host EMU_FILE_SD=$SHARED/host/file_sd
    export EMU_ADDRESS=$NETWORK.1:$PORT RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$SHARED/token
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH")
    new_host "$0" --host first_host "$@" <&0 &
    local first=$!
    new_host "${clocks[@]}" "$0" --host second_host &
    local second=$!
    within "$WAIT_S" test -e "$SHARED/up.1" -a -e "$SHARED/up.2"
    ip link add "$LINK" netns "$first" type veth peer name "$LINK" netns "$second"
    wait -n  # the second host ends first only where it fails
}

if [[ ${1-} == --host ]]; then
    shift
    "$@"
else
    main "$@"
fi
