#include "hpcdl/stream.h"

#include <gtest/gtest.h>

#include <string>

namespace hpcdl {
namespace {

TEST(scoped_value, earlier_values_are_restored_in_reverse_order) {
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
