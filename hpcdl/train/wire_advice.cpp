#include "hpcdl/train/wire_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "hpcdl/buffer.h"
#include "hpcdl/core/clock.h"
#include "hpcdl/core/units.h"

namespace hpcdl::train {
namespace {

constexpr double kMillion = 1e6;

/// The median of three calls, after one that is not timed.
template <class F> double seconds_of(F&& f) {
  f();
  std::array<double, 3> seconds{};
  for (auto& s : seconds) {
    const auto begin = Clock::now();
    f();
    s = seconds_since(begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[1];
}

}  // namespace

WireTimes wire_times(double link, double coding, double plain_bytes, WireCode code) {
  const double coded = static_cast<double>(WireLayout{WireLayout::kBlock, 1, code}.bytes()) / WireLayout::kBlock;
  return {kMillion * plain_bytes / link, kMillion * coded / link, kMillion * coding};
}

double measured_link(const comm::Group& group, Pool& pool) {
  constexpr std::int64_t kBytes = 256 << 10;
  const Stream s(pool);
  const OwnedTensor mine({{kBytes}, DType::u8}), all({{kBytes * group.size()}, DType::u8});
  std::memset(mine.tensor.data(), 1, kBytes);
  const double seconds = seconds_of([&] { group.all_gather(s, all.tensor, mine.tensor).wait(); });
  return static_cast<double>(kBytes * (group.size() - 1)) / seconds;
}

double measured_coding(WireCode code, Pool& pool) {
  constexpr std::int64_t kElements = 1 << 18;
  Stream s(pool);
  const OwnedTensor x({{kElements}, DType::f32}), y({{kElements}, DType::f32});
  std::fill_n(x.tensor.ptr<float>(), kElements, 0.5f);
  const OwnedTensor messages(WireEncode::infer(x.tensor.spec(), {1, code}));
  const double seconds = seconds_of([&] {
    WireEncode::forward(s, messages.tensor, x.tensor, {1, code});
    WireDecode::forward(s, y.tensor, messages.tensor, {.elements = kElements, .parts = 1, .code = code});
  });
  return seconds / static_cast<double>(kElements);
}

std::string wire_warning(const std::string& key, const WireTimes& t, double link, double plain_bytes, WireCode code) {
  if (!t.pointless()) return "";
  return fmt::format(
      "warning: {} = \"{}\" gains no time on this link of {}/s: a million elements of {} bytes take {:.2f} ms, and as "
      "{} {:.2f} ms and {:.2f} ms of arithmetic",
      key, wire_code_name(code), format_bytes(link), plain_bytes, 1e3 * t.plain, wire_code_name(code), 1e3 * t.coded,
      1e3 * t.coding);
}

}  // namespace hpcdl::train
