#!/usr/bin/env bash
# The image, built and run without a container engine: buildah builds the stages of the Dockerfile on base file systems that
# debootstrap makes, with the Rust of this machine. The image then starts read-only, as its user and with its volume, gives a
# lock, is restarted, still has it, and ends within its grace. Root is needed. PROFILE= leaves out the build that counts.
set -euo pipefail
cd "$(dirname "$0")/../.."
bases=$PWD/target/debian mirror=${MIRROR:-http://deb.debian.org/debian} suite=${SUITE:-bookworm}
LARGEST=$((28 * 1024 * 1024)) GRACE=15
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
mkdir -p "$bases"

# A base image of this name, with these packages and what else is said of it.
base() {
    local name=$1 packages=$2 root=$bases/$1
    shift 2
    if [ ! -e "$root.complete" ]; then
        rm -rf "$root" && debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" > /dev/null
        # The certificates of this machine, should a proxy before the registries need one of its own.
        cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
        touch "$root.complete"
    fi
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$root" / > /dev/null
    "$@" "$container"
    buildah commit --quiet --rm "$container" "$name" > /dev/null
}
with_rust() {
    buildah add --quiet "$1" "$(rustc --print sysroot)" /usr/local/rust > /dev/null
    buildah config --env PATH=/usr/local/rust/bin:/usr/bin:/bin --env CARGO_HOME=/usr/local/cargo "$1"
}
base keylatch-build-base ca-certificates,build-essential,python3,redis-server with_rust
base keylatch-base ca-certificates true

buildah bud --quiet --build-arg BUILD_IMAGE=localhost/keylatch-build-base --build-arg BASE_IMAGE=localhost/keylatch-base \
    --build-arg PROFILE="${PROFILE-}" --network host --tag keylatch . > /dev/null

container=$(buildah from keylatch)
root=$(buildah mount "$container")
volume=$(mktemp -d)
service=
finish() {
    test -z "$service" || kill -KILL "$service" 2> /dev/null || true
    buildah rm "$container" > /dev/null
    rm -rf "$volume"
}
trap finish EXIT

added=$(du --summarize --bytes "$root/usr/local/bin/keylatch" | cut -f 1)
echo "the image adds $added bytes to its base"
test "$added" -le "$LARGEST" || { echo "more than $LARGEST"; exit 1; }

# What the image says of how it is started.
setting() { buildah inspect --format "{{ $1 }}" "$container"; }
user=$(setting .OCIv1.Config.User)
entry=$(setting '(index .OCIv1.Config.Entrypoint 0)')
mapfile -t environment < <(setting '(join .OCIv1.Config.Env "\n")')
chown "$user" "$volume"
test "$(setting '(index .OCIv1.Config.Volumes "/data")')" = "{}"

start() {
    # shellcheck disable=SC2016
    unshare --mount --propagation private sh -euc '
        root=$1 volume=$2 user=$3 entry=$4; shift 4
        mount --bind "$root" "$root"
        mount --bind "$volume" "$root/data"
        mount -o remount,ro,bind "$root"
        exec env -i "$@" KEYLATCH_OPEN=true KEYLATCH_LISTEN=127.0.0.1:'"$port"' chroot --userspec="$user" "$root" "$entry"
    ' - "$root" "$volume" "$user" "$entry" "${environment[@]}" 2> "$volume.log" &
    service=$!
    for _ in $(seq 100); do
        curl --silent --fail --max-time 5 "$url/readyz" > /dev/null && return
        kill -0 "$service" 2> /dev/null || break
        sleep 0.1
    done
    cat "$volume.log"
    exit 1
}
stop() {
    kill -TERM "$service"
    for _ in $(seq $((GRACE * 10))); do
        kill -0 "$service" 2> /dev/null || break
        sleep 0.1
    done
    ! kill -0 "$service" 2> /dev/null || { echo "not ended after $GRACE s"; exit 1; }
    wait "$service"
    service=
}
port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port

start
curl --silent --fail-with-body "$url/v1/locks/deploy" --data '{"ttl_ms":600000}' | grep --quiet '"fencing_token":[0-9]'
stop
start
curl --silent --fail-with-body "$url/v1/locks/deploy" | grep --quiet '"fencing_token":[0-9]'
stop
echo "started read-only as $user, restarted with its lock, ended within its grace"

# The compose files, by the reader that Docker's own command has, each with the file that builds the image here, too.
read_compose() { go run github.com/compose-spec/compose-go/v2/cmd@v2.1.0 --format json "$@" > /dev/null && echo "$*: read"; }
for file in compose.{yaml,cluster.yaml,etcd.yaml,postgres.yaml,redlock.yaml,sentinel.yaml,zookeeper.yaml}; do
    read_compose "$file"
    read_compose "$file" compose.build.yaml
done
read_compose compose.yaml compose.observe.yaml
