#pragma once
// Strings that end a text, in a text that arrives in parts.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::serve {

/// Passes a text on, without the first of the strings that occurs in it and without what follows. Holds back what may
/// still become such a string.
class StopText {
 public:
  /// None of the strings is empty.
  explicit StopText(std::vector<std::string> strings) : strings_(std::move(strings)) {}
  /// The part of the text that became certain.
  std::string push(std::string_view text);
  /// What was held back, at the end of the text.
  std::string finish();
  /// Whether one of the strings occurred.
  bool stopped() const { return stopped_; }

 private:
  std::size_t held_back() const;

  std::vector<std::string> strings_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace hpcdl::serve
