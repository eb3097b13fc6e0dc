#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "hpcdl/infer/grammar/json_text.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr std::size_t kDigits = 15;  // that a double keeps apart

/// Digits of numbers >= 0 between two bounds that have the same number of digits before the point.
class Between {
 public:
  /// `fraction`: how many digits may follow the point; 0 for whole numbers.
  Between(Builder& builder, const DecimalBound& low, const DecimalBound& high, std::size_t fraction, StateId to)
      : b_(builder), low_(low), high_(high), fraction_(fraction), to_(to) {}

  void add(StateId from) { digits(from, 0, true, true); }

 private:
  static int digit(const std::string& text, std::size_t at) { return at < text.size() ? text[at] - '0' : 0; }

  /// `tight`: whether the digits before `at` are those of the bound.
  StateId at(std::size_t place, bool tight_low, bool tight_high) {
    const auto [it, fresh] = states_.try_emplace({place, tight_low, tight_high}, 0);
    if (!fresh) return it->second;
    const StateId s = it->second = b_.state();
    const std::size_t whole = low_.whole.size();
    if (place < whole) {
      digits(s, place, tight_low, tight_high);
    } else if (place == whole) {
      end(s, 0, tight_low, tight_high);
      if (fraction_ > 0) {
        const StateId point = b_.state();
        b_.byte(s, '.', point);
        digits(point, place, tight_low, tight_high);
      }
    } else {
      end(s, place - whole, tight_low, tight_high);
      if (place - whole < fraction_) digits(s, place, tight_low, tight_high);
    }
    return s;
  }

  void digits(StateId from, std::size_t place, bool tight_low, bool tight_high) {
    const std::size_t whole = low_.whole.size();
    const auto of = [&](const DecimalBound& bound) {
      return place < whole ? digit(bound.whole, place) : digit(bound.fraction, place - whole);
    };
    const int first = tight_low ? of(low_) : place == 0 && whole > 1 ? 1 : 0, last = tight_high ? of(high_) : 9;
    for (int d = first; d <= last; ++d)
      b_.byte(from, static_cast<char>('0' + d),
              at(place + 1, tight_low && d == of(low_), tight_high && d == of(high_)));
  }

  /// The number may end after `done` digits of its fraction, if it is within the bounds.
  void end(StateId s, std::size_t done, bool tight_low, bool tight_high) {
    const auto more = [&](const DecimalBound& bound) {
      return bound.fraction.find_first_not_of('0', done) != std::string::npos;
    };
    if (tight_low && (more(low_) || low_.open)) return;
    if (tight_high && !more(high_) && high_.open) return;
    b_.jump(s, to_);
  }

  Builder& b_;
  const DecimalBound &low_, &high_;
  std::size_t fraction_;
  StateId to_;
  std::map<std::tuple<std::size_t, bool, bool>, StateId> states_;
};

/// Numbers >= 0 from `low` to `high`, of up to `digits` digits; with a fraction, if that is wanted.
void add_magnitudes(Builder& b, StateId from, const DecimalBound& low, const DecimalBound& high, std::size_t digits,
                    bool fractions, StateId to) {
  for (std::size_t n = low.whole.size(); n <= std::min(high.whole.size(), digits); ++n) {
    DecimalBound a = low, z = high;
    if (n > low.whole.size()) a = {.whole = "1" + std::string(n - 1, '0'), .fraction = ""};
    if (n < high.whole.size()) z = {.whole = std::string(n, '9'), .fraction = std::string(digits, '9')};
    const auto value = [](const DecimalBound& x) { return x.whole; };  // of the same number of digits
    if (value(a) > value(z)) continue;
    Between(b, a, z, fractions ? digits - n : 0, to).add(from);
  }
}

DecimalBound zero(bool open) { return {.whole = "0", .fraction = "", .open = open}; }
bool is_zero(const DecimalBound& x) { return x.whole == "0" && x.fraction.find_first_not_of('0') == std::string::npos; }

void add_range(Builder& b, StateId from, const std::optional<DecimalBound>& min, const std::optional<DecimalBound>& max,
               std::size_t digits, bool fractions, StateId to) {
  const DecimalBound largest{.whole = std::string(digits, '9'), .fraction = ""};
  const bool max_is_negative = max && max->negative && !is_zero(*max);
  const bool min_is_negative = !min || (min->negative && !is_zero(*min));
  if (!max_is_negative)
    add_magnitudes(b, from, min_is_negative ? zero(false) : *min, max ? *max : largest, digits, fractions, to);
  if (!min_is_negative) return;
  const StateId minus = b.state();
  b.byte(from, '-', minus);
  add_magnitudes(b, minus, max_is_negative ? *max : zero(true), min ? *min : largest, digits, fractions, to);
}

DecimalBound whole_bound(std::int64_t x) {
  std::string text = fmt::format("{}", x);
  const bool negative = text[0] == '-';
  return {.negative = negative, .whole = text.substr(negative ? 1 : 0), .fraction = ""};
}

}  // namespace

void build_integer(Builder& builder, StateId from, std::int64_t min, std::int64_t max, StateId to) {
  add_range(builder, from, whole_bound(min), whole_bound(max), 19, false, to);
}

std::optional<DecimalBound> decimal_bound(double bound, bool open) {
  // The shortest decimal that is this double, without an exponent.
  std::string text = fmt::format("{}", bound);
  if (const auto e = text.find('e'); e != std::string::npos) {
    const int exponent = std::stoi(text.substr(e + 1));
    if (exponent > 0 || exponent < -static_cast<int>(kDigits)) return std::nullopt;
    const auto digits = text.find('.') == std::string::npos ? 0 : e - text.find('.') - 1;
    text = fmt::format("{:.{}f}", bound, digits + static_cast<std::size_t>(-exponent));
  }
  DecimalBound out;
  out.negative = text[0] == '-';
  out.open = open;
  if (out.negative) text.erase(0, 1);
  const auto point = text.find('.');
  out.whole = text.substr(0, point);
  if (point != std::string::npos) out.fraction = text.substr(point + 1);
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.whole.size() + out.fraction.size() > kDigits) return std::nullopt;
  return out;
}

void build_decimal(Builder& builder, StateId from, const std::optional<DecimalBound>& min,
                   const std::optional<DecimalBound>& max, StateId to) {
  add_range(builder, from, min, max, kDigits, true, to);
}

}  // namespace hpcdl::infer::grammar
