#pragma once

#include "hpcdl/stream.h"

namespace hpcdl {

/// Queues a call of f(data) after the earlier work of a GPU's stream; later work waits for it. A thread of the driver makes
/// the call, which must not throw or use the GPU. If the stream is captured, every launch makes the
/// call again: `data` must outlive the capture.
void queue_host_call(const Stream& s, void (*f)(void*), void* data);

/// Whether a GPU's copy engine reaches this host memory directly: page-locked memory, as that of Pinned and PinnedRange.
bool is_pinned(const void* host);

}  // namespace hpcdl
