#include "hpcdl/data/images/pickle.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>

#include "hpcdl/core/error.h"

namespace hpcdl::data::pickle {
namespace {

constexpr std::size_t kMostValues = std::size_t{1} << 22, kMostMemo = kMostValues;

template <class T> Ref make(T value) { return std::make_shared<Value>(Value{std::move(value)}); }

/// Converts Latin-1 characters that Python 3 wrote as UTF-8 back to bytes.
std::optional<std::string> latin1_of_utf8(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (std::size_t i = 0; i < s.size(); ++i) {
    const auto c = static_cast<unsigned char>(s[i]);
    if (c < 0x80) {
      out.push_back(s[i]);
      continue;
    }
    if ((c != 0xC2 && c != 0xC3) || i + 1 == s.size() || (static_cast<unsigned char>(s[i + 1]) & 0xC0) != 0x80)
      return std::nullopt;
    out.push_back(static_cast<char>((c & 3) << 6 | (static_cast<unsigned char>(s[++i]) & 0x3F)));
  }
  return out;
}

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& from) : in_(bytes), from_(from) {}

  Ref run() {
    if (u8() != 0x80) refuse("it does not begin with a protocol number: not a pickle of protocol 2");
    if (const int protocol = u8(); protocol != 2)
      refuse(fmt::format(
          "expected protocol 2, which the CIFAR archives have, found {} (Python: pickle.dump(..., protocol=2))",
          protocol));
    for (;;) {
      const int op = u8();
      if (op == '.') break;
      step(op);
      if (made_ > kMostValues) refuse(fmt::format("more than {} values", kMostValues));
    }
    if (stack_.size() != 1 || !marks_.empty()) refuse("it ends with something other than one value");
    return stack_.back();
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail("data", "{}: not a pickle that can be read, at byte {}: {}", from_, at_, why);
  }

  std::string_view take(std::uint64_t n) {
    if (n > in_.size() - at_)
      fail("data", "{}: the pickle ends early: {} bytes wanted at byte {} of {}: truncated?", from_, n, at_,
           in_.size());
    const auto s = in_.substr(at_, n);
    at_ += n;
    return s;
  }
  std::uint64_t number(int bytes) {
    const auto s = take(static_cast<std::uint64_t>(bytes));
    std::uint64_t v = 0;
    for (int i = 0; i < bytes; ++i)
      v |= std::uint64_t{static_cast<unsigned char>(s[static_cast<std::size_t>(i)])} << (8 * i);
    return v;
  }
  int u8() { return static_cast<int>(number(1)); }
  std::string_view line() {
    const auto end = in_.find('\n', at_);
    if (end == std::string_view::npos) refuse("a name without an end");
    const auto s = in_.substr(at_, end - at_);
    at_ = end + 1;
    return s;
  }

  void push(Ref v) {
    ++made_;
    stack_.push_back(std::move(v));
  }
  Ref pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size()))
      refuse("it pops more values than it has pushed");
    Ref v = std::move(stack_.back());
    stack_.pop_back();
    return v;
  }
  Value& top() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size()))
      refuse("it pops more values than it has pushed");
    return *stack_.back();
  }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) refuse("a mark is missing");
    const auto begin = static_cast<std::ptrdiff_t>(marks_.back());
    marks_.pop_back();
    std::vector<Ref> items(std::make_move_iterator(stack_.begin() + begin), std::make_move_iterator(stack_.end()));
    stack_.resize(static_cast<std::size_t>(begin));
    return items;
  }
  template <class T> T& as(Value& v, const char* what) const {
    if (T* p = std::get_if<T>(&v.v)) return *p;
    refuse(fmt::format("expected {}", what));
  }

  // Lists hold plain values, and dictionaries plain values and lists, as in every archive: so no object can contain
  // itself, which would never be freed, and nesting stays shallow.
  void append(std::vector<Ref> items) {
    auto& list = as<List>(top(), "a list").items;
    for (Ref& i : items) {
      if (std::holds_alternative<List>(i->v) || std::holds_alternative<Tuple>(i->v) ||
          std::holds_alternative<Dict>(i->v))
        refuse("a container in a list");
      list.push_back(std::move(i));
    }
  }
  void set(std::vector<Ref> items) {
    auto& dict = as<Dict>(top(), "a dictionary").items;
    if (items.size() % 2) refuse("a key without a value");
    for (std::size_t i = 0; i < items.size(); i += 2) {
      as<std::string>(*items[i], "a string for a key");
      if (std::holds_alternative<Tuple>(items[i + 1]->v) || std::holds_alternative<Dict>(items[i + 1]->v))
        refuse("a tuple or a dictionary in a dictionary");
      dict.emplace_back(std::move(items[i]), std::move(items[i + 1]));
    }
  }
  void tuple(std::vector<Ref> items) {
    int depth = 1;
    for (const Ref& i : items)
      if (const auto* t = std::get_if<Tuple>(&i->v)) depth = std::max(depth, t->depth + 1);
    if (depth > 8) refuse("tuples nested more than 8 deep");
    push(make(Tuple{std::move(items), depth}));
  }
  void tuple(std::size_t n) {
    std::vector<Ref> items(n);
    for (std::size_t i = n; i-- > 0;) items[i] = pop();
    tuple(std::move(items));
  }
  /// Counts copied bytes, because a hostile pickle can request copies repeatedly.
  void count(std::size_t bytes) {
    copied_ += bytes;
    if (copied_ > 8 * in_.size()) refuse("it unfolds to many times its own size");
  }

  void step(int op);
  bool constant(int op);
  void global();
  void reduce();
  void build();
  void remember(std::uint64_t key) {
    top();
    if (memo_.size() >= kMostMemo) refuse(fmt::format("more than {} values to remember", kMostMemo));
    memo_[key] = stack_.back();
  }
  void recall(std::uint64_t key) {
    const auto it = memo_.find(key);
    if (it == memo_.end()) refuse(fmt::format("value {} is used before it is stored", key));
    push(it->second);
  }

  std::string_view in_;
  std::string from_;
  std::size_t at_ = 0, made_ = 0, copied_ = 0;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Ref> memo_;
};

/// Instructions that push a number or a string. Their names are those of Python's pickletools.
bool Reader::constant(int op) {
  switch (op) {
    case 'N': push(make(None{})); return true;
    case 0x88: push(make(true)); return true;
    case 0x89: push(make(false)); return true;
    case 'K': push(make(static_cast<std::int64_t>(number(1)))); return true;
    case 'M': push(make(static_cast<std::int64_t>(number(2)))); return true;
    case 'J': push(make(std::int64_t{static_cast<std::int32_t>(number(4))})); return true;
    case 'U': push(make(std::string(take(number(1))))); return true;
    case 'T': push(make(std::string(take(number(4))))); return true;
    case 'X': push(make(std::string(take(number(4))))); return true;
    default: return false;
  }
}

void Reader::step(int op) {
  if (constant(op)) return;
  switch (op) {
    case '(':
      if (marks_.size() > 64) refuse("more than 64 marks");
      marks_.push_back(stack_.size());
      return;
    case '}': return push(make(Dict{}));
    case ']': return push(make(List{}));
    case ')': return push(make(Tuple{}));
    case 0x85: return tuple(1);
    case 0x86: return tuple(2);
    case 0x87: return tuple(3);
    case 't': return tuple(pop_to_mark());
    case 'a': return append({pop()});
    case 'e': return append(pop_to_mark());
    case 'u': return set(pop_to_mark());
    case 's': {
      Ref value = pop(), key = pop();
      return set({std::move(key), std::move(value)});
    }
    case 'q': return remember(number(1));
    case 'r': return remember(number(4));
    case 'h': return recall(number(1));
    case 'j': return recall(number(4));
    case 'c': return global();
    case 'R': return reduce();
    case 'b': return build();
    default: --at_; refuse(fmt::format("instruction 0x{:02x}, which no CIFAR archive has", op));
  }
}

void Reader::global() {
  const std::string module(line()), name(line());
  const bool numpy = module == "numpy.core.multiarray" || module == "numpy._core.multiarray";
  if (numpy && name == "_reconstruct") return push(make(Name::reconstruct));
  if (module == "numpy" && name == "ndarray") return push(make(Name::ndarray));
  if (module == "numpy" && name == "dtype") return push(make(Name::dtype));
  if (module == "_codecs" && name == "encode") return push(make(Name::encode));
  refuse(fmt::format("it asks for Python's {}.{}, which is not called here; only plain NumPy arrays are read",
                     module.substr(0, 60), name.substr(0, 60)));
}

/// The only calls that are accepted: _reconstruct(ndarray, (0,), 'b'), dtype('u1', 0, 1), encode(text, 'latin1').
void Reader::reduce() {
  const Ref arguments = pop(), called = pop();
  const auto& list = as<Tuple>(*arguments, "a tuple of arguments").items;
  switch (as<Name>(*called, "a supported name")) {
    case Name::reconstruct:
      if (list.empty() || !std::holds_alternative<Name>(list[0]->v) || std::get<Name>(list[0]->v) != Name::ndarray)
        refuse("expected an array of numpy.ndarray");
      return push(make(Array{}));
    case Name::dtype:
      if (list.empty()) refuse("a dtype without a name");
      return push(make(Dtype{as<std::string>(*list[0], "the name of a dtype")}));
    case Name::encode: {
      if (list.size() != 2 || as<std::string>(*list[1], "the name of an encoding") != "latin1")
        refuse("expected bytes as latin1 text");
      const auto& text = as<std::string>(*list[0], "a text");
      count(text.size());
      auto bytes = latin1_of_utf8(text);
      if (!bytes) refuse("a text that is not latin1");
      return push(make(std::move(*bytes)));
    }
    default: refuse("it calls a class");
  }
}

/// The state of an array, (version, shape, dtype, by columns?, bytes), or of a dtype, which does not matter for bytes.
void Reader::build() {
  const Ref state = pop();
  auto& list = as<Tuple>(*state, "a tuple of state").items;
  if (std::holds_alternative<Dtype>(top().v)) return;
  auto& array = as<Array>(top(), "an array or a dtype");
  if (list.size() != 5) refuse(fmt::format("an array of {} parts; expected 5", list.size()));
  const auto& type = as<Dtype>(*list[2], "a dtype").name;
  if (type != "u1" && type != "|u1") refuse(fmt::format("an array of dtype {}; expected u1", type.substr(0, 20)));
  if (as<bool>(*list[3], "true or false")) refuse("an array stored by columns; expected by rows");
  std::uint64_t size = 1;
  array.shape.clear();
  for (const Ref& dim : as<Tuple>(*list[1], "a shape").items) {
    const auto n = as<std::int64_t>(*dim, "a number of elements");
    if (n < 0 || __builtin_mul_overflow(size, static_cast<std::uint64_t>(n), &size)) refuse("an impossible shape");
    array.shape.push_back(n);
  }
  const auto& data = as<std::string>(*list[4], "the bytes of an array");
  count(data.size());
  array.data = data;
  if (array.data.size() != size)
    refuse(fmt::format("an array of {} bytes; its shape needs {}", array.data.size(), size));
}

}  // namespace

Ref read(std::string_view bytes, const std::string& from) { return Reader(bytes, from).run(); }

const Value* find(const Value& dict, std::string_view key) {
  const auto* d = std::get_if<Dict>(&dict.v);
  if (!d) return nullptr;
  for (const auto& [name, value] : d->items)
    if (std::get<std::string>(name->v) == key) return value.get();
  return nullptr;
}

}  // namespace hpcdl::data::pickle
