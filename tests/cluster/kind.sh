#!/usr/bin/env bash
# A cluster for `make test-cluster` on any machine with Docker: kind, Argo Workflows, Envoy Gateway.
#
#   TMPDIR=~/shiplift-kind SHIPLIFT_CLUSTER_SCRIPT=tests/cluster/kind.sh make test-cluster
#
#   kind.sh up                         start it; what is there already stays
#   kind.sh addon gateway              Envoy Gateway, and the GatewayClass `eg`
#   kind.sh build DIR TAG [OPTIONS]    docker build, then load the image into the node
#   kind.sh kubeconfig                 where its kubeconfig is
#   kind.sh down                       delete it
#
# It needs docker, git, helm and kubectl, and sudo for one route: the tests talk to the addresses of Services. TMPDIR is
# a folder of its own, which the node sees too: pytest makes the folders there that pods mount.
#
# What is fetched is pinned: kind by its SHA-256, the rest by commits, which are checksums of what they hold. kind's
# own default is the node's image, by digest.
set -euo pipefail

kind_version=v0.31.0 kind_sha256=eb244cbafcc157dff60cf68693c14c9a75c4e6e6fedaf9cd71c58117cb93e3fa
argo_version=v4.0.7 argo_commit=9aeb47ce10339f4a14819335c6a00027353ba0df
gateway_version=v1.7.0 gateway_commit=da2aac967d53c6d5264906fef05a397cd097b23e

name=shiplift services=10.96.0.0/16
state=${XDG_CACHE_HOME:-$HOME/.cache}/shiplift-kind
kind=$state/bin/kind-$kind_version
export KUBECONFIG=$state/conf/kubeconfig

die() { echo "kind.sh: $*" >&2; exit 1; }

need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || die "needs $program; install it"
  done
}

get_kind() {
  [ -x "$kind" ] && return
  mkdir -p "$state/bin"
  curl -fsSLo "$kind.new" "https://github.com/kubernetes-sigs/kind/releases/download/$kind_version/kind-linux-amd64"
  echo "$kind_sha256  $kind.new" | sha256sum --check --quiet || die "kind $kind_version is not what its checksum says"
  chmod +x "$kind.new" && mv "$kind.new" "$kind"
}

pinned() { # pinned REPOSITORY COMMIT: a public repository at this commit; prints its folder
  local folder=$state/$2
  if [ ! -e "$folder/.done" ]; then
    rm -rf "$folder" && git init -q "$folder"
    git -C "$folder" fetch -q --depth 1 "https://github.com/$1" "$2"
    git -C "$folder" checkout -q --detach "$2" && touch "$folder/.done"
  fi
  echo "$folder"
}

up() {
  need docker git kubectl curl
  case ${TMPDIR:-/tmp} in /tmp | /tmp/) die "set TMPDIR to a folder of its own: the node has a /tmp, and shares this" ;; esac
  mkdir -p "$TMPDIR" "$(dirname "$KUBECONFIG")"
  get_kind
  if ! "$kind" get clusters 2>/dev/null | grep -qx $name; then
    "$kind" create cluster --name $name --wait 120s --config - <<CONFIG
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking: {serviceSubnet: $services}
nodes:
  - {role: control-plane, extraMounts: [{hostPath: "$TMPDIR", containerPath: "$TMPDIR"}]}
CONFIG
  fi
  "$kind" export kubeconfig --name $name
  sudo ip route replace $services via "$(docker inspect -f '{{.NetworkSettings.Networks.kind.IPAddress}}' $name-control-plane)"
  argo
}

argo() {
  local source
  source=$(pinned argoproj/argo-workflows $argo_commit)
  kubectl create namespace argo --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl kustomize "$source/manifests/cluster-install" | sed "s/:latest\$/:$argo_version/" |
    kubectl apply --server-side --force-conflicts -f - >/dev/null
  kubectl -n argo rollout status deployment/workflow-controller --timeout 180s
}

gateway() {
  need helm
  local chart
  chart=$(pinned envoyproxy/gateway $gateway_commit)/charts/gateway-helm
  helm template eg "$chart" --namespace envoy-gateway-system --include-crds --values "$chart/values.tmpl.yaml" \
    --set createNamespace=true --set deployment.envoyGateway.image.repository=envoyproxy/gateway \
    --set deployment.envoyGateway.image.tag=$gateway_version --set global.images.envoyGateway.pullPolicy=IfNotPresent |
    kubectl apply --server-side --force-conflicts -f - >/dev/null
  kubectl -n envoy-gateway-system rollout status deployment/envoy-gateway --timeout 180s
  kubectl apply -f - <<OBJECTS # a Gateway gets an address inside the cluster: nothing here hands out others
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {name: eg, namespace: envoy-gateway-system}
spec:
  provider: {type: Kubernetes, kubernetes: {envoyService: {type: ClusterIP}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
  parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: eg, namespace: envoy-gateway-system}
OBJECTS
  kubectl wait --for condition=Accepted --timeout 60s gatewayclass/eg
}

build() { # build DIR TAG [OPTIONS]
  local folder=$1 tag=$2
  shift 2
  docker build "$@" --build-arg PIP_EXTRA_INDEX_URL -t "$tag" -f "$folder/Containerfile" "$folder"
  "$kind" load docker-image --name $name "$tag"
}

case ${1:-} in
  up) up ;;
  addon) [ "${2:-}" = gateway ] || die "addon gateway"; gateway ;;
  build) [ $# -ge 3 ] || die "build DIR TAG [OPTIONS]"; shift; build "$@" ;;
  kubeconfig) echo "$KUBECONFIG" ;;
  down) get_kind; "$kind" delete cluster --name $name ;;
  *) sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
