#pragma once
// Runs a test body with every instruction set of this CPU.

#include <gtest/gtest.h>

#include <utility>

#include "hpcdl/simd/isa.h"

namespace hpcdl::testing {

/// Restores the active instruction set at the end of its scope.
class ActiveIsa {
 public:
  ActiveIsa() = default;
  ~ActiveIsa() { simd::set_active_isa(before_); }
  ActiveIsa(const ActiveIsa&) = delete;
  ActiveIsa& operator=(const ActiveIsa&) = delete;

 private:
  simd::IsaKind before_ = simd::active_isa();
};

/// Calls body() with each instruction set active, in the order of simd::kIsaKinds; ends at the first fatal failure.
template <class F> void for_each_isa(F&& body) {
  const ActiveIsa restore;
  for (const auto isa : simd::kIsaKinds) {
    if (!simd::set_active_isa(isa)) continue;
    SCOPED_TRACE(simd::isa_name(isa));
    body();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace hpcdl::testing
