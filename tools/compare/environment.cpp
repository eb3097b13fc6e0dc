#include "tools/compare/environment.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "hpcdl/core/units.h"
#include "hpcdl/machine/machine.h"

namespace hpcdl::lab::compare {

namespace {

std::int64_t sweep_bytes() {
  static const std::int64_t cache = std::max<std::int64_t>(this_machine().last_level_cache, std::int64_t{16} << 20);
  return cache * 9 / 4 / 4096 * 4096;
}

}  // namespace

double Environment::time(const std::function<void()>& call, int calls) {
  synchronize();
  const double start = now();
  for (int i = 0; i < calls; ++i) call();
  synchronize();
  return now() - start;
}

double HostEnvironment::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void HostEnvironment::flush() {
  if (!sweep_.data()) {
    sweep_ = Buffer(sweep_bytes());
    std::memset(sweep_.data(), 1,
                static_cast<std::size_t>(sweep_.bytes()));  // unwritten pages would all be one page of zeros
  }
  const auto* words = reinterpret_cast<const std::uint64_t*>(sweep_.data());
  parallel_for(*pool_, sweep_.bytes() / 64, 1024, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t sum = 0;
    for (std::int64_t line = begin; line < end; ++line) sum += words[line * 8];
    volatile std::uint64_t sink = sum;
    (void)sink;
  });
}

void HostEnvironment::sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

std::string HostEnvironment::flush_method() const {
  return "caches flushed before each call by reading " + format_bytes(static_cast<double>(sweep_bytes()));
}

}  // namespace hpcdl::lab::compare
