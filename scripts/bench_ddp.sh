#!/bin/bash
# Data-parallel training over a slow link: two ranks on two "hosts" (network namespaces of this machine, joined by a link of RATE), bucket sizes
# against waiting for each tensor separately; or, with BENCH=zero and --wires, 16-bit wires against fewer bytes. Needs root, iproute2 and Open MPI; makes its own namespaces and removes them.
#   scripts/bench_ddp.sh [options of hpcdl bench ddp]         RATE=200mbit  HPCDL=build/release/hpcdl  THREADS=1, of each rank  BENCH=ddp
#   TORCH=PYTHON scripts/bench_ddp.sh [options of bench/peers/ddp_gloo.py]     the same in PyTorch: DistributedDataParallel over gloo. The Python
#                                                             has torch, and HPCDL_MODULE is the folder of our module (build/release/python)
set -euo pipefail
cd "$(dirname "$0")/.."
rate=${RATE:-200mbit}
hpcdl=$(realpath "${HPCDL:-build/release/hpcdl}")
for tool in ip tc mpirun; do
  command -v "$tool" > /dev/null || { echo "bench_ddp: $tool is missing: scripts/setup.sh distributed" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "bench_ddp: making network namespaces needs root" >&2; exit 2; }

tag=ddp$$
folder=$(mktemp -d)
clean() {
  ip netns del "${tag}a" 2> /dev/null || true
  ip netns del "${tag}b" 2> /dev/null || true
  rm -rf "$folder"
}
trap clean EXIT

ip netns add "${tag}a"
ip netns add "${tag}b"
ip link add "v$$a" netns "${tag}a" type veth peer name "v$$b" netns "${tag}b"
for side in a b; do
  address=$([ "$side" = a ] && echo 10.78.0.1 || echo 10.78.0.2)
  ip -n "$tag$side" addr add "$address/24" dev "v$$$side"
  ip -n "$tag$side" link set "v$$$side" up mtu 9000
  ip -n "$tag$side" link set lo up
  ip netns exec "$tag$side" tc qdisc add dev "v$$$side" root tbf rate "$rate" burst 256kb latency 20ms
done

if [ -n "${TORCH:-}" ]; then
  export MASTER_ADDR=10.78.0.1 MASTER_PORT=29577 WORLD_SIZE=2 HPCDL_THREADS="${THREADS:-1}"
  torch=("$TORCH" -W ignore bench/peers/ddp_gloo.py --threads "${THREADS:-1}" "$@")
  RANK=1 GLOO_SOCKET_IFNAME=v$$b ip netns exec "${tag}b" "${torch[@]}" &
  RANK=0 GLOO_SOCKET_IFNAME=v$$a ip netns exec "${tag}a" "${torch[@]}"
  wait $!
  exit
fi

# mpirun starts the daemon of the other host through this: each namespace has another host name.
cat > "$folder/agent" << AGENT
#!/bin/sh
case "\$1" in 10.78.0.1) name=${tag}a;; *) name=${tag}b;; esac
shift
exec ip netns exec \$name unshare --uts -- sh -c "hostname \$name; \$*"
AGENT
chmod +x "$folder/agent"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# --bind-to none: otherwise each daemon would bind to processor 0. One thread for each rank: the script divides the machine's processors.
ip netns exec "${tag}a" unshare --uts -- sh -c 'hostname "$0"; shift 0; exec "$@"' "${tag}a" \
  mpirun --bind-to none --mca plm rsh --mca plm_rsh_agent "$folder/agent" --mca pml ob1 --mca btl tcp,self --mca mpi_yield_when_idle 1 \
  --mca btl_tcp_if_include 10.78.0.0/24 --mca oob_tcp_if_include 10.78.0.0/24 -H 10.78.0.1:1,10.78.0.2:1 -np 2 \
  "$hpcdl" bench "${BENCH:-ddp}" --threads "${THREADS:-1}" "$@"
