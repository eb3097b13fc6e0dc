#pragma once

#include <cstdint>
#include <string>

namespace hpcdl::cli {

struct NumberedDemo {
  int number = 0;  // 1 to 4
  std::string data, device = "cpu", out;
  std::int64_t epochs = 0;
  bool json = false, quick = false;
};

/// Runs one of the four demos in examples/demos: prints its page as text or JSON, writes OUT/report.html. Returns the
/// exit code.
int run_demo(const NumberedDemo& options);

}  // namespace hpcdl::cli
