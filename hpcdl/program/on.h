#pragma once
// Where an op leaves its struct: the kernels of the device and of the instruction set.

#include "hpcdl/simd/isa.h"
#include "hpcdl/stream.h"

namespace hpcdl {

/// Runs the CPU code for the active instruction set, or the GPU code on a GPU stream. A backend that is not built needs
/// no stub: its lambda is generic and never instantiated.
#if defined(HPCDL_SIMD_TU)
// Kernel files see the definitions of their kernels: dispatching there would instantiate them for every set. No
// kernel calls an op's forward.
template <class Cpu, class... Cuda> void on(Stream&, Cpu&&, Cuda&&...) {}
#else
template <class Cpu, class Cuda> void on(Stream& s, Cpu&& cpu, [[maybe_unused]] Cuda&& cuda) {
#if HPCDL_CUDA
  if (s.device().kind == DeviceKind::cuda) return cuda(s);
#endif
  simd::with_isa([&](auto isa) { cpu(isa, s.pool()); });
}
template <class Cpu> void on(Stream& s, Cpu&& cpu) {
  s.require_cpu();
  simd::with_isa([&](auto isa) { cpu(isa, s.pool()); });
}
#endif

}  // namespace hpcdl
