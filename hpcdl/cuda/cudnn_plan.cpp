#if HPCDL_CUDNN

#include "hpcdl/cuda/cudnn_plan.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::cuda::cudnn {
namespace {

Library load() {
  Library l;
  const char* path = std::getenv("HPCDL_CUDNN_LIBRARY");
  void* so = ::dlopen(path ? path : "libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  require(so || !path, "cudnn", "HPCDL_CUDNN_LIBRARY does not name a library that can be loaded: {}", path ? path : "");
  if (!so) return l;
  l.whole = true;
  const auto find = [&]<class F>(F& f, const char* name) {
    f = reinterpret_cast<F>(::dlsym(so, name));
    l.whole = l.whole && f;
  };
  find(l.version, "cudnnGetVersion");
  find(l.create, "cudnnCreate");
  find(l.set_stream, "cudnnSetStream");
  find(l.error_string, "cudnnGetErrorString");
  find(l.create_descriptor, "cudnnBackendCreateDescriptor");
  find(l.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  find(l.finalize, "cudnnBackendFinalize");
  find(l.set_attribute, "cudnnBackendSetAttribute");
  find(l.get_attribute, "cudnnBackendGetAttribute");
  find(l.execute, "cudnnBackendExecute");
  return l;
}

/// The library's choices, best first.
std::vector<Descriptor> choices(const Descriptor& graph, cudnnBackendHeurMode_t mode,
                                [[maybe_unused]] const Target& target) {
  constexpr int kMost = 24;
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
#if CUDNN_VERSION >= 90800
  if (target.device) heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
#endif
  std::vector<Descriptor> found;
  if (!heuristic.try_finalize()) return found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int i = 0; i < kMost; ++i)
    found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), raw.push_back(found.back().raw());
  std::int64_t count = 0;
  if (Library::get().get_attribute(heuristic.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost,
                                   &count, raw.data()) != CUDNN_STATUS_SUCCESS)
    count = 0;
  found.erase(found.begin() + std::min<std::int64_t>(count, kMost), found.end());
  return found;
}

std::vector<cudnnBackendNumericalNote_t> notes_of(const Descriptor& config) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  std::int64_t count = 0;
  check(Library::get().get_attribute(config.raw(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                     &count, &raw),
        "the engine of a choice");
  return engine.get<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
}

/// The plan of a choice, unless it cannot be made or needs more than `most` bytes.
std::optional<Plan> finished(const Descriptor& config, const Target& target, std::int64_t most) {
  Plan p{Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
  if (target.handle) p.plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
#if CUDNN_VERSION >= 90800
  if (target.device) p.plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
#endif
  p.plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (!p.plan.try_finalize()) return std::nullopt;
  p.workspace = p.plan.get<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1).at(0);
  if (p.workspace > most) return std::nullopt;
  return p;
}

std::mutex mutex;

/// The library on the stream's GPU. Never destroyed, because captured work may hold its kernels.
cudnnHandle_t handle_of(const Stream& s) {
  static auto* const all = new std::map<int, cudnnHandle_t>();
  cudnnHandle_t& handle = (*all)[s.device().index];
  if (!handle) {
    const OnDevice on(s.device());
    check(Library::get().create(&handle), "cudnnCreate");
  }
  return handle;
}

}  // namespace

const Library& Library::get() {
  static const Library library = load();
  return library;
}

Descriptor pointwise(cudnnPointwiseMode_t mode, const Descriptor& y, const Descriptor& x, const Descriptor* b,
                     const Descriptor* t, cudnnDataType_t compute, std::optional<std::int64_t> axis) {
  Descriptor kind(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute);
  if (axis) kind.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, *axis);
  kind.finalize();
  Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x), op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (b) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  if (t) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t);
  op.finalize();
  return op;
}

std::vector<Plan> plans_of(std::span<const Descriptor> operations, const Target& target, std::int64_t most, int count,
                           const Accepts& accepts) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const auto& op : operations) raw.push_back(op.raw());
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(raw.size()),
            raw.data());
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  std::vector<Plan> found;
  if (!graph.try_finalize()) return found;
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
    for (const Descriptor& config : choices(graph, mode, target)) {
      if (std::ssize(found) >= count) return found;
      if (!accepts(notes_of(config))) continue;
      if (auto p = finished(config, target, most)) found.push_back(std::move(*p));
    }
  return found;
}

std::optional<Plan> plan_of(std::span<const Descriptor> operations, const Target& target, std::int64_t most,
                            const Accepts& accepts) {
  auto found = plans_of(operations, target, most, 1, accepts);
  if (found.empty()) return std::nullopt;
  return std::move(found.front());
}

Relaxed::Relaxed() {
  auto mode = cudaStreamCaptureModeRelaxed;
  cuda::check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  mode_ = mode;
}

Relaxed::~Relaxed() {
  auto mode = static_cast<cudaStreamCaptureMode>(mode_);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

Session::Session(const Stream& s) : lock_(mutex), handle_(handle_of(s)) {}

void Session::run(const Stream& s, const Plan& plan, std::span<const std::int64_t> ids, std::span<void* const> places,
                  void* workspace) {
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, static_cast<std::int64_t>(ids.size()), ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<std::int64_t>(places.size()),
           places.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  check(Library::get().set_stream(handle_, queue(s)), "cudnnSetStream");
  check(Library::get().execute(handle_, plan.plan.raw(), pack.raw()), "cudnnBackendExecute");
}

}  // namespace hpcdl::cuda::cudnn

#endif
