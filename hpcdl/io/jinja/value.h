#pragma once
// Values of templates, which behave as those of Python do.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hpcdl::io::jinja {

class Value;
class Run;
struct Arguments;
struct Namespace;
struct Loop;

/// What a name without a value stands for: it prints nothing, and is an error in most other uses.
struct Undefined {
  std::shared_ptr<const std::string> error;  // the message then
};
struct None {};

/// UTF-8. After the filter `safe`, `+` escapes the other side for HTML, as Markup of Python does.
struct Text {
  std::shared_ptr<const std::string> text;
  bool safe = false;
};

/// What a list is in Python. A view is that of dict.items(); a stream comes from filters such as map: it has neither
/// length nor index.
enum class Form : std::uint8_t { list, tuple, view, stream };

struct List {
  std::vector<Value> items;
  Form form = Form::list;
  int depth = 1;  // of nesting, which is bounded
};

/// In the order of insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  const Value* find(std::string_view key) const;
};

struct Function {
  std::string name;
  std::function<Value(Run&, Arguments&)> call;
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
                            std::shared_ptr<const Dict>, std::shared_ptr<const Function>, Namespace*, Loop*>;
  Value() = default;
  Value(Data data) : data_(std::move(data)) {}

  const Data& data() const { return data_; }
  bool undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool none() const { return std::holds_alternative<None>(data_); }
  /// nullptr if it is something else.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const std::string* text() const;
  bool safe() const;
  const List* list() const;
  const Dict* dict() const;
  const Function* function() const;
  Namespace* space() const;
  Loop* loop() const;
  /// Of a whole number, and of a bool as 0 or 1.
  const std::int64_t* whole() const { return std::get_if<std::int64_t>(&data_); }
  bool number() const { return whole() || real() || boolean(); }
  /// 0 for what holds no values.
  int depth() const;

 private:
  Data data_;
};

/// Variables that a template may change; owned by the Run.
struct Namespace {
  std::vector<std::pair<std::string, Value>> values;
};

/// Position in a `for`; owned by the Run.
struct Loop {
  std::shared_ptr<const List> items;
  std::int64_t index = 0;
};

Value text_value(std::string text, bool safe = false);
/// Undefined, with the error "'NAME' is undefined", or one of its own.
Value missing(std::string_view name);
Value undefined_because(std::string error);
/// Throws std::length_error for nesting beyond kMaxNesting.
Value list_value(std::vector<Value> items, Form form = Form::list);
Value dict_value(std::vector<std::pair<Value, Value>> items);
inline constexpr int kMaxNesting = 100;

/// "string", "list", "undefined" and so on, for messages.
std::string_view kind_of(const Value& value);
bool truth(const Value& value);

/// Number of code points.
std::int64_t length_of(std::string_view text);
/// Byte offset of the code point at `index`, in [0, length].
std::size_t offset_of(std::string_view text, std::int64_t index);

}  // namespace hpcdl::io::jinja
