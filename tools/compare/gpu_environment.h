#pragma once

#include "hpcdl/buffer.h"
#include "hpcdl/stream.h"
#include "tools/compare/environment.h"

namespace hpcdl::lab::compare {

/// The queue of a GPU. Times are those between two GPU events around the calls; flush() writes memory of several
/// times its L2 cache.
class GpuEnvironment : public HostEnvironment {
 public:
  /// Throws Error in a build without CUDA.
  GpuEnvironment(Pool& pool, const Stream& stream);
  void synchronize() override { stream_.synchronize(); }
  void flush() override;
  std::string flush_method() const override;
  double time(const std::function<void()>& call, int calls) override;

 private:
  Stream stream_;
  Buffer sweep_;
};

}  // namespace hpcdl::lab::compare
