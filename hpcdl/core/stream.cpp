#include "hpcdl/stream.h"

#include <cstring>

#include "hpcdl/core/error.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl {

void Stream::require_cpu() const {
  require(!device_.is_cuda(), "cuda", "a record of this program has no GPU code: run it on a CPU");
}

Stream Stream::borrowed(Device device, void* native, Pool& pool, StepParams* mirror) {
  Stream s(pool);
  s.device_ = device;
  s.native_ = std::shared_ptr<void>(std::shared_ptr<void>(),
                                    native);  // without a reference count, because it is not freed here
  s.mirror_ = std::shared_ptr<StepParams>(std::shared_ptr<void>(), mirror);
  return s;
}

#if HPCDL_CUDA

using cuda::check;
using cuda::OnDevice;
using cuda::queue;

Stream::Stream(Device device, Pool& pool, StepParams* params) : device_(device), pool_(&pool), params_(params) {
  if (!device.is_cuda()) return;
  require(device.index < cuda_devices(), "cuda", "no GPU number {}: this process sees {}", device.index,
          cuda_devices());
  check(cudaSetDevice(device.index),
        "cudaSetDevice");  // stays set: the thread that makes a queue launches on it, and then its GPU must be current
  cudaStream_t s = nullptr;
  check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreate");
  native_ = {s, [](void* p) { cudaStreamDestroy(static_cast<cudaStream_t>(p)); }};
  void* mirror = nullptr;
  check(cudaMalloc(&mirror, sizeof(StepParams)), "cudaMalloc");
  mirror_ = {static_cast<StepParams*>(mirror), [](StepParams* p) { cudaFree(p); }};
}

void Stream::synchronize() const {
  if (device_.is_cuda()) check(cudaStreamSynchronize(queue(*this)), "a queued kernel or copy");
}

void Stream::push_params() const {
  if (device_.is_cuda() && params_)
    check(cudaMemcpyAsync(mirror_.get(), params_, sizeof(StepParams), cudaMemcpyHostToDevice, queue(*this)),
          "step parameters");
}

void Stream::pull_params() const {
  if (!device_.is_cuda()) return;
  check(cudaMemcpyAsync(params_, mirror_.get(), sizeof(StepParams), cudaMemcpyDeviceToHost, queue(*this)),
        "step parameters");
  synchronize();
}

void Event::record(const Stream& s) {
  if (!s.device().is_cuda()) return;
  const OnDevice on(s.device());
  if (!native_) {
    cudaEvent_t e = nullptr;
    check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "cudaEventCreate");
    native_ = {e, [](void* p) { cudaEventDestroy(static_cast<cudaEvent_t>(p)); }};
  }
  check(cudaEventRecord(static_cast<cudaEvent_t>(native_.get()), queue(s)), "cudaEventRecord");
}

void Event::wait(const Stream& s) const {
  if (native_) check(cudaStreamWaitEvent(queue(s), static_cast<cudaEvent_t>(native_.get()), 0), "cudaStreamWaitEvent");
}

void copy(const Stream& s, const Tensor& to, const View& from) {
  require(to.spec() == from.spec() && to.is_contiguous() && from.is_contiguous(), "memory",
          "expected two contiguous tensors of one spec to copy");
  const auto bytes = static_cast<std::size_t>(to.bytes());
  if (bytes == 0) return;
  if (!to.device().is_cuda() && !from.device().is_cuda()) {
    std::memcpy(to.data(), from.data(), bytes);
    return;
  }
  require(s.device().is_cuda(), "memory", "expected a stream of the GPU for a copy to or from it");
  check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDefault, queue(s)), "cudaMemcpyAsync");
  if (!to.device().is_cuda()) s.synchronize();
}

void Capture::begin(const Stream& s) {
  check(cudaStreamBeginCapture(queue(s), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

Capture Capture::end(const Stream& s) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(queue(s), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t exec = nullptr;
  const auto status = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  Capture c;
  c.native_ = {exec, [](void* p) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(p)); }};
  return c;
}

void Capture::launch(const Stream& s) const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(native_.get()), queue(s)), "cudaGraphLaunch");
}

DryRun::DryRun(const Stream& s) : stream_(s) {
  auto mode = cudaStreamCaptureModeRelaxed;  // memory may be allocated, and kernels loaded
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  mode_ = mode;
  Capture::begin(s);
}

DryRun::~DryRun() {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(queue(stream_), &graph) != cudaSuccess) cudaGetLastError();  // a call threw, and says why
  if (graph) cudaGraphDestroy(graph);
  auto mode = static_cast<cudaStreamCaptureMode>(mode_);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

#else

Stream::Stream(Device device, Pool& pool, StepParams* params) : device_(device), pool_(&pool), params_(params) {
  require(!device.is_cuda(), "cuda", "this build has no CUDA: configure it with --preset cuda on a machine with nvcc");
}
void Stream::synchronize() const {}
void Stream::push_params() const {}
void Stream::pull_params() const {}
void Event::record(const Stream&) {}
void Event::wait(const Stream&) const {}
void copy(const Stream&, const Tensor& to, const View& from) {
  require(to.spec() == from.spec() && to.is_contiguous() && from.is_contiguous(), "memory",
          "expected two contiguous tensors of one spec to copy");
  if (to.bytes() > 0) std::memcpy(to.data(), from.data(), static_cast<std::size_t>(to.bytes()));
}
void Capture::begin(const Stream&) {}
Capture Capture::end(const Stream&) { return {}; }
void Capture::launch(const Stream&) const {}
DryRun::DryRun(const Stream& s) : stream_(s) {}
DryRun::~DryRun() = default;

#endif

}  // namespace hpcdl
