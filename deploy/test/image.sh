#!/usr/bin/env bash
# Builds the image and serves from it, where there is no Docker, no registry and no cluster: buildah
# and podman as root, on a base of Debian that debootstrap makes. `make test-image`.
#
#   apt-get install buildah podman runc catatonit netavark debootstrap
#   BASE_IMAGE=…       takes another base, and makes none
#   BUILD_OPTIONS=…    more for buildah: mirrors, certificates
#   MODELS=folder      octavo's cache, with the default model; else the user's own
set -euo pipefail
cd "$(dirname "$0")/../.."

MOST_MEGABYTES=1200
IMAGE=localhost/octavo:test
BASE_IMAGE=${BASE_IMAGE:-}
MODELS=${MODELS:-${OCTAVO_CACHE:-$HOME/.cache/octavo}}
URL=http://127.0.0.1:8000
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=${STORAGE_DRIVER:-overlay}
work=$(mktemp -d)
trap 'clean_up' EXIT

main() {
    [ -n "$BASE_IMAGE" ] || make_base
    build
    check_size
    write_podman_config
    check_contents
    serve_alone
    serve_as_kubernetes_would
    echo "image: built, small enough, serves with a read-only root and no capabilities"
}

clean_up() {
    podman rm --force --ignore octavo-test >/dev/null 2>&1 || true
    [ ! -f "$work/pod.yaml" ] || podman play kube --down "$work/pod.yaml" >/dev/null 2>&1 || true
    rm -rf "$work"
}

make_base() {
    BASE_IMAGE=localhost/octavo-base:bookworm
    if buildah inspect "$BASE_IMAGE" >/dev/null 2>&1; then return; fi
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
        bookworm "$work/base" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$work/debootstrap.log"
    rm -rf "$work"/base/var/cache/apt/archives/*.deb "$work"/base/var/lib/apt/lists/*
    local container
    container=$(buildah from scratch)
    cp -a "$work/base/." "$(buildah mount "$container")/"
    buildah umount "$container" >/dev/null
    buildah commit -q --rm "$container" "$BASE_IMAGE" >/dev/null
    rm -rf "$work/base"
}

build() {
    # Docker's format, as OCI's has no health check. The options are words.
    # shellcheck disable=SC2086
    buildah bud --format docker --layers --target cpu --build-arg BASE_IMAGE="$BASE_IMAGE" \
        ${BUILD_OPTIONS:-} --tag "$IMAGE" . >"$work/build.log" 2>&1 ||
        { tail -40 "$work/build.log"; exit 1; }
}

check_size() {
    local bytes
    bytes=$(podman image inspect --format '{{.Size}}' "$IMAGE")
    echo "image: $((bytes / 1000000)) MB"
    [ "$bytes" -le $((MOST_MEGABYTES * 1000000)) ]
}

write_podman_config() {
    cat >"$work/containers.conf" <<'CONF'
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
CONF
    export CONTAINERS_CONF=$work/containers.conf
}

check_contents() {
    [ "$(run octavo --version)" = "octavo $(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" ]
    [ "$(run id -u)" = 10001 ]
    if run which gcc; then echo "image: the compiler should have stayed behind"; exit 1; fi
    # The native model is there, in every variant that this kind of processor has.
    run python3 -c 'import model.native as native, pathlib
found = sorted(p.name for p in pathlib.Path(native.__file__).parent.glob("*.so"))
assert found, "model/native was not compiled"
print("image:", *found)'
}

# Without systemd it complains, at each start, that it can't ask for health by itself.
podman() {
    command podman --log-level fatal "$@"
}

# A command in a container as locked up as the one that serves.
run() {
    podman run --rm --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
        --entrypoint "" "$IMAGE" "$@"
}

serve_alone() {
    podman run --detach --name octavo-test --read-only --tmpfs /tmp --cap-drop ALL \
        --security-opt no-new-privileges --memory 3g --volume "$MODELS:/models:ro" \
        --env OCTAVO_HOST=127.0.0.1 "$IMAGE" >/dev/null
    wait_until_ready || { podman logs octavo-test; exit 1; }
    ask
    podman healthcheck run octavo-test
    echo "image: $(podman stats --no-stream --format '{{.MemUsage}}' octavo-test) in use"
    podman stop --time 40 octavo-test >/dev/null
    [ "$(podman inspect --format '{{.State.ExitCode}}' octavo-test)" = 0 ]
    podman rm octavo-test >/dev/null
}

# The CPU overlay's pod, init container first.
serve_as_kubernetes_would() {
    .venv/bin/kubectl kustomize deploy/overlays/cpu |
        .venv/bin/python deploy/test/for_podman.py "$IMAGE" "$MODELS" >"$work/pod.yaml"
    podman play kube "$work/pod.yaml" >"$work/play.log" 2>&1 || { cat "$work/play.log"; exit 1; }
    wait_until_ready || { podman logs octavo-pod-octavo; exit 1; }
    ask
    is_locked_up
    podman play kube --down "$work/pod.yaml" >/dev/null
}

is_locked_up() {
    local inside=(podman exec octavo-pod-octavo)
    [ "$("${inside[@]}" id -u)" = 10001 ]
    "${inside[@]}" grep -q '^CapBnd:[[:space:]]*0*$' /proc/1/status
    "${inside[@]}" grep -q '^NoNewPrivs:[[:space:]]*1$' /proc/1/status
    if "${inside[@]}" touch /opt/octavo/x /models/x 2>/dev/null; then
        echo "image: the root or the models can be written to"
        exit 1
    fi
}

wait_until_ready() {
    local _
    for _ in $(seq 120); do
        if curl --silent --fail --output /dev/null "$URL/readyz"; then return; fi
        sleep 1
    done
    return 1
}

ask() {
    curl --silent --fail "$URL/v1/completions" --header 'content-type: application/json' \
        --data '{"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}' |
        grep Paris
}

main
