#include "hpcdl/core/timed_event.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl {

#if HPCDL_CUDA

namespace {

cudaEvent_t of(const std::shared_ptr<void>& native) { return static_cast<cudaEvent_t>(native.get()); }

}  // namespace

void TimedEvent::record(const Stream& s) {
  if (!s.device().is_cuda()) return;
  const cuda::OnDevice on(s.device());
  if (!native_) {
    cudaEvent_t e = nullptr;
    cuda::check(cudaEventCreate(&e), "cudaEventCreate");
    native_ = {e, [](void* p) { cudaEventDestroy(static_cast<cudaEvent_t>(p)); }};
  }
  auto capturing = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(cuda::queue(s), &capturing), "cudaStreamIsCapturing");
  // Without the flag an event in a capture is only an edge of the graph.
  const unsigned flag = capturing == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
  cuda::check(cudaEventRecordWithFlags(of(native_), cuda::queue(s), flag), "cudaEventRecord");
}

void TimedEvent::wait(const Stream& s) const {
  if (native_) cuda::check(cudaStreamWaitEvent(cuda::queue(s), of(native_), 0), "cudaStreamWaitEvent");
}

double TimedEvent::seconds_between(const TimedEvent& begin, const TimedEvent& end) {
  if (!begin || !end) return 0;
  for (const auto* e : {&begin, &end}) cuda::check(cudaEventSynchronize(of(e->native_)), "a queued kernel or copy");
  float ms = 0;
  cuda::check(cudaEventElapsedTime(&ms, of(begin.native_), of(end.native_)), "cudaEventElapsedTime");
  return static_cast<double>(ms) * 1e-3;
}

#else

void TimedEvent::record(const Stream&) {}
void TimedEvent::wait(const Stream&) const {}
double TimedEvent::seconds_between(const TimedEvent&, const TimedEvent&) { return 0; }

#endif

}  // namespace hpcdl
