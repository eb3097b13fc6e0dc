#include "hpcdl/core/scoped_value.h"

#include <gtest/gtest.h>

#include <string>

namespace hpcdl {
namespace {

TEST(ScopedValue, WhatWasThereComesBackInReverseOrder) {
  std::string x = "outside";
  {
    const ScopedValue<std::string> first(x, "first");
    {
      const ScopedValue<std::string> second(x, "second");
      EXPECT_EQ(x, "second");
    }
    EXPECT_EQ(x, "first");
    x = "changed meanwhile";
  }
  EXPECT_EQ(x, "outside");
}

}  // namespace
}  // namespace hpcdl
