#pragma once
// How an update whose state lies in host memory is divided between the CPU and the device.

namespace hpcdl {

/// Seconds that one element, or one byte, takes.
struct UpdateRates {
  double cpu = 0;        // the update of an element on the CPU
  double to_host = 0;    // a byte from the device
  double from_host = 0;  // a byte to the device
};

/// Bytes of one element that move.
struct UpdateBytes {
  double to_host = 0, from_host = 0;
};

/// With groups of elements of one size, of which every k-th is updated on the device: the k from 0 (none) to 64 for
/// which the busiest of CPU and links is done first; of equally good ones the smallest. `cpu`, `device`: what moves for
/// a group that is updated there. Source: Maurya et al., "Deep Optimizer States: towards scalable training of
/// transformer models using interleaved offloading", Middleware 2024.
int choose_interleave(const UpdateRates& rates, const UpdateBytes& cpu, const UpdateBytes& device);

}  // namespace hpcdl
