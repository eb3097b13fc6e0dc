// gpu_tests [--gtest_...] [--ways "attention=cudnn conv2d=own"]: the specs of ops use these ways wherever they can.

#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/way_names.h"
#include "hpcdl/testing/spec_ways.h"

int main(int argc, char** argv) try {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string_view(argv[1]) == "--ways") {
    auto preferred = hpcdl::parse_preferred_ways(argv[2], "--ways");
    hpcdl::check_preferred_ways(preferred, "--ways");
    hpcdl::testing::ways_of_specs() =
        std::make_shared<const hpcdl::Ways>(hpcdl::WayNames{.calls = {}, .preferred = std::move(preferred)});
  } else if (argc > 1) {
    hpcdl::fail_usage("gpu_tests", "expected --ways \"op=way\", got \"{}\"", argv[1]);
  }
  return RUN_ALL_TESTS();
} catch (const hpcdl::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
