#include "hpcdl/io/pickle.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <unordered_map>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io::pickle {

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& from, std::span<const std::string_view> known, std::size_t most)
      : in_(bytes), from_(from), known_(known), most_(most) {}

  Document run() {
    if (u8() != 0x80) refuse("it does not begin with a protocol number");
    if (const auto protocol = u8(); protocol < 2 || protocol > 5)
      refuse(fmt::format("expected protocol 2 to 5, found {}", protocol));
    for (;;) {
      begin_ = at_;
      const auto op = u8();
      if (op == '.') break;
      step(op);
    }
    if (stack_.size() != 1 || !marks_.empty()) refuse("it ends with something other than one value");
    out_.root_ = stack_.back();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail("io", "{}: not a pickle that can be read, at byte {}: {}", from_, begin_, why);
  }

  std::string_view take(std::uint64_t n) {
    if (n > in_.size() - at_)
      fail("io", "{}: the pickle ends early: {} bytes wanted at byte {} of {}: truncated?", from_, n, at_, in_.size());
    const auto s = in_.substr(at_, n);
    at_ += n;
    return s;
  }
  std::uint64_t number(int bytes) {
    std::uint64_t v = 0;
    int shift = 0;
    for (const char c : take(static_cast<std::uint64_t>(bytes))) {
      v |= std::uint64_t{static_cast<unsigned char>(c)} << shift;
      shift += 8;
    }
    return v;
  }
  std::uint64_t u8() { return number(1); }
  std::string_view line() {
    const auto end = in_.find('\n', at_);
    if (end == std::string_view::npos) refuse("a name without an end");
    const auto s = in_.substr(at_, end - at_);
    at_ = end + 1;
    return s;
  }

  template <class T> void make(T value) {
    if (out_.values_.size() >= most_) refuse(fmt::format("more than {} values", most_));
    stack_.push_back(&out_.values_.emplace_back(Value{std::move(value)}));
  }
  void need_value() const {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size()))
      refuse("it pops more values than it has pushed");
  }
  Value* top() const {
    need_value();
    return stack_.back();
  }
  Value* pop() {
    Value* v = top();
    stack_.pop_back();
    return v;
  }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) refuse("a mark is missing");
    const auto begin = static_cast<std::ptrdiff_t>(marks_.back());
    marks_.pop_back();
    std::vector<Ref> items(stack_.begin() + begin, stack_.end());
    stack_.resize(static_cast<std::size_t>(begin));
    return items;
  }
  template <class T> T& as(Value& v, const char* what) const {
    if (T* p = std::get_if<T>(&v.v)) return *p;
    refuse(fmt::format("expected {}", what));
  }

  void step(std::uint64_t op);
  bool constant(std::uint64_t op);
  bool container(std::uint64_t op);
  bool memo(std::uint64_t op);

  std::int64_t long_integer() {
    const auto bytes = static_cast<int>(u8());
    if (bytes > 8) refuse(fmt::format("an integer of {} bytes; expected at most 8", bytes));
    const auto bits = number(bytes);
    const int unused = 64 - 8 * bytes;
    return bytes == 0 ? 0 : static_cast<std::int64_t>(bits << unused) >> unused;  // two's complement
  }
  double big_endian_double() {
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
    return std::bit_cast<double>(bits);
  }
  void tuple(std::size_t n) {
    std::vector<Ref> items(n);
    for (std::size_t i = n; i-- > 0;) items[i] = pop();
    make(Tuple{std::move(items)});
  }
  void append(const std::vector<Ref>& more) {
    auto& list = as<List>(*top(), "a list").items;
    list.insert(list.end(), more.begin(), more.end());
  }
  void set(const std::vector<Ref>& more) {
    if (more.size() % 2) refuse("a key without a value");
    auto* object = std::get_if<Object>(&top()->v);
    auto& items = object ? object->items : as<Dict>(*top(), "a dictionary").items;
    for (std::size_t i = 0; i < more.size(); i += 2) items.emplace_back(more[i], more[i + 1]);
  }
  void global(std::string_view module, std::string_view name) {
    const std::string full = std::string(module) + "." + std::string(name);
    const auto it = std::ranges::find(known_, full);
    if (it == known_.end())
      refuse(fmt::format("it asks for Python's {}, which is not called here and not known as data", shown(full)));
    make(Global{*it});
  }
  void stack_global() {
    const auto name = as<Text>(*pop(), "a name").text;
    global(as<Text>(*pop(), "the name of a module").text, name);
  }
  /// Calling a known name makes no more than a note of the call.
  void object() {
    Value* arguments = pop();
    as<Tuple>(*arguments, "a tuple of arguments");
    const auto name = as<Global>(*pop(), "a known name to make an object of").name;
    make(Object{name, arguments, nullptr, {}});
  }
  void build() {
    Value* state = pop();
    auto& object = as<Object>(*top(), "an object that gets a state");
    if (object.state) refuse("it sets the state of an object twice");
    object.state = state;
  }
  void persistent() {
    Value* id = pop();
    make(Persistent{id});
  }
  void remember(std::uint64_t key) {
    if (memo_.size() >= most_) refuse(fmt::format("more than {} values to remember", most_));
    memo_[key] = top();
  }
  void recall(std::uint64_t key) {
    const auto it = memo_.find(key);
    if (it == memo_.end()) refuse(fmt::format("value {} is used before it is stored", key));
    if (stack_.size() >= most_) refuse(fmt::format("more than {} values at once", most_));
    stack_.push_back(it->second);
  }

  std::string_view in_;
  const std::string& from_;
  std::span<const std::string_view> known_;
  std::size_t most_;
  std::size_t at_ = 0, begin_ = 0;
  Document out_;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value*> memo_;
};

/// Instructions that push a number or a string. Their names are those of Python's pickletools.
bool Machine::constant(std::uint64_t op) {
  switch (op) {
    case 'N': make(None{}); return true;
    case 0x88: make(true); return true;
    case 0x89: make(false); return true;
    case 'K': make(static_cast<std::int64_t>(number(1))); return true;
    case 'M': make(static_cast<std::int64_t>(number(2))); return true;
    case 'J': make(std::int64_t{static_cast<std::int32_t>(number(4))}); return true;
    case 0x8a: make(long_integer()); return true;
    case 'G': make(big_endian_double()); return true;
    case 'U': make(Text{take(number(1))}); return true;
    case 'T': make(Text{take(number(4))}); return true;
    case 0x8c: make(Text{take(number(1))}); return true;
    case 'X': make(Text{take(number(4))}); return true;
    case 0x8d: make(Text{take(number(8))}); return true;
    case 'C': make(Bytes{take(number(1))}); return true;
    case 'B': make(Bytes{take(number(4))}); return true;
    case 0x8e: make(Bytes{take(number(8))}); return true;
    default: return false;
  }
}

bool Machine::container(std::uint64_t op) {
  switch (op) {
    case '(':
      if (marks_.size() >= kMostMarks) refuse(fmt::format("more than {} marks", kMostMarks));
      marks_.push_back(stack_.size());
      return true;
    case '}': make(Dict{}); return true;
    case ']': make(List{}); return true;
    case ')': make(Tuple{}); return true;
    case 0x85: tuple(1); return true;
    case 0x86: tuple(2); return true;
    case 0x87: tuple(3); return true;
    case 't': make(Tuple{pop_to_mark()}); return true;
    case 'a': append({pop()}); return true;
    case 'e': append(pop_to_mark()); return true;
    case 'u': set(pop_to_mark()); return true;
    case 's': {
      const Ref value = pop(), key = pop();
      set({key, value});
      return true;
    }
    default: return false;
  }
}

bool Machine::memo(std::uint64_t op) {
  switch (op) {
    case 'q': remember(number(1)); return true;
    case 'r': remember(number(4)); return true;
    case 0x94: remember(memo_.size()); return true;
    case 'h': recall(number(1)); return true;
    case 'j': recall(number(4)); return true;
    default: return false;
  }
}

void Machine::step(std::uint64_t op) {
  if (constant(op) || container(op) || memo(op)) return;
  switch (op) {
    case 'c': {
      const auto module = line();
      return global(module, line());
    }
    case 0x93: return stack_global();
    case 'R':
    case 0x81: return object();  // a call, and a class whose new object is made
    case 'b': return build();
    case 'Q': return persistent();
    case 0x95:  // the size of what follows, which a reader may fetch at once
      if (number(8) > in_.size() - at_) refuse("a frame that is longer than the file: truncated?");
      return;
    default: refuse(fmt::format("instruction 0x{:02x}, which is not supported", op));
  }
}

const std::vector<Ref>* Value::made_by(std::string_view name) const {
  const auto* object = as<Object>();
  return object && object->name == name ? &object->arguments->as<Tuple>()->items : nullptr;
}

Document read(std::string_view bytes, const std::string& from, std::span<const std::string_view> known,
              std::size_t most_values) {
  return Machine(bytes, from, known, most_values).run();
}

Ref find(const Value& dict, std::string_view key) {
  const auto* object = dict.as<Object>();
  const auto* plain = dict.as<Dict>();
  const Items* items = object ? &object->items : plain ? &plain->items : nullptr;
  if (!items) return nullptr;
  for (const auto& [name, value] : *items)
    if (const auto* text = name->as<Text>(); text && text->text == key) return value;
  return nullptr;
}

}  // namespace hpcdl::io::pickle
