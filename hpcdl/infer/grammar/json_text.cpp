#include "hpcdl/infer/grammar/json_text.h"

#include <array>
#include <nlohmann/json.hpp>
#include <vector>

namespace hpcdl::infer::grammar {
namespace {

constexpr int kSpaces = 64, kTabs = 32;  // after a line feed
constexpr int kMostDigits = 18;          // of a number, before and after the point

void digits(Builder& b, StateId from, int min, int max, StateId to) {
  b.repeat(from, min, max, false, [&](StateId a, StateId z) { b.bytes(a, '0', '9', z); }, to);
}

/// Zero, or digits that do not begin with zero.
void whole_number(Builder& b, StateId from, int most_digits, StateId to) {
  const StateId rest = b.state();
  b.byte(from, '0', to);
  b.bytes(from, '1', '9', rest);
  digits(b, rest, 0, most_digits - 1, to);
}

void hex_digits(Builder& b, StateId from, int count, StateId to) {
  for (int i = 0; i < count; ++i) {
    const StateId next = i + 1 == count ? to : b.state();
    b.bytes(from, '0', '9', next);
    b.bytes(from, 'A', 'F', next);
    b.bytes(from, 'a', 'f', next);
    from = next;
  }
}

/// After "\u": one character, or two surrogates that make one.
void unicode_escape(Builder& b, StateId from, StateId to) {
  const StateId three = b.state(), d = b.state(), two = b.state(), low = b.state(), slash = b.state(), u = b.state(),
                low_d = b.state();
  b.bytes(from, '0', '9', three);
  for (const auto& [first, last] : {std::pair{'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}})
    b.bytes(from, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last), three);
  hex_digits(b, three, 3, to);
  b.byte(from, 'd', d);
  b.byte(from, 'D', d);
  b.bytes(d, '0', '7', two);
  hex_digits(b, two, 2, to);
  const StateId high = b.state();
  for (const auto& [first, last] : {std::pair{'8', '9'}, {'A', 'B'}, {'a', 'b'}})
    b.bytes(d, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last), high);
  hex_digits(b, high, 2, slash);
  b.byte(slash, '\\', u);
  b.byte(u, 'u', low);
  b.byte(low, 'd', low_d);
  b.byte(low, 'D', low_d);
  const StateId last_two = b.state();
  for (const auto& [first, last] : {std::pair{'C', 'F'}, {'c', 'f'}})
    b.bytes(low_d, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last), last_two);
  hex_digits(b, last_two, 2, to);
}

const CharSet& unescaped() {
  static const CharSet set = ~CharSet::of(0, 0x1F).add(CharSet::of('"', '"')).add(CharSet::of('\\', '\\'));
  return set;
}

}  // namespace

RuleId JsonText::shared(std::optional<RuleId>& id, const char* name, void (JsonText::*fill)(StateId, StateId)) {
  if (id) return *id;
  id = b_.rule(name);
  (this->*fill)(b_[*id].start, b_[*id].end);
  return *id;
}

RuleId JsonText::blank() { return shared(blank_, "blanks", &JsonText::fill_blank); }
RuleId JsonText::any() { return shared(any_, "any value", &JsonText::fill_any); }
RuleId JsonText::string() { return shared(string_, "a string", &JsonText::fill_string); }
RuleId JsonText::number() { return shared(number_, "a number", &JsonText::fill_number); }
RuleId JsonText::integer() { return shared(integer_, "an integer", &JsonText::fill_integer); }

RuleId JsonText::string(int min, int max) {
  if (min == 0 && max == kUnbounded) return string();
  const auto [it, fresh] = strings_.try_emplace({min, max}, 0);
  if (fresh) {
    it->second = b_.rule("a string");
    string_body(b_[it->second].start, min, max, b_[it->second].end);
  }
  return it->second;
}

void JsonText::open(StateId from, char bracket, StateId to) {
  const StateId after = b_.state();
  b_.byte(from, bracket, after);
  b_.call(after, blank(), to);
}

void JsonText::close(StateId from, char bracket, StateId to) {
  const StateId before = b_.state();
  b_.call(from, blank(), before);
  b_.byte(before, bracket, to);
}

void JsonText::fill_blank(StateId from, StateId to) {
  b_.jump(from, to);
  b_.byte(from, ' ', to);
  const StateId line = b_.state();
  b_.byte(from, '\n', line);
  const auto some = [&](char c, int max) {
    StateId at = line;
    b_.jump(line, to);
    for (int i = 0; i < max; ++i) {
      const StateId next = b_.state();
      b_.byte(at, c, next);
      b_.jump(next, to);
      at = next;
    }
  };
  some(' ', kSpaces);
  some('\t', kTabs);
}

void JsonText::fill_any(StateId from, StateId to) {
  for (const char* word : {"null", "true", "false"}) b_.literal(from, word, to);
  b_.call(from, string(), to);
  b_.call(from, number(), to);
  // Both in this rule, so that a level of nesting is one call.
  const auto list = [&](char first, char last, const auto& item) {
    const StateId opened = b_.state(), begin = b_.state(), after = b_.state();
    open(from, first, opened);
    b_.byte(opened, last, to);
    b_.jump(opened, begin);
    item(begin, after);
    close(after, last, to);
    comma(after, begin);
  };
  list('[', ']', [&](StateId a, StateId z) { b_.call(a, any(), z); });
  list('{', '}', [&](StateId a, StateId z) {
    const StateId key = b_.state(), value = b_.state();
    b_.call(a, string(), key);
    colon(key, value);
    b_.call(value, any(), z);
  });
}

void JsonText::fill_string(StateId from, StateId to) { string_body(from, 0, kUnbounded, to); }

void JsonText::string_body(StateId from, int min, int max, StateId to) {
  const StateId begin = b_.state(), end = b_.state();
  b_.byte(from, '"', begin);
  b_.repeat(begin, min, max, true, [&](StateId a, StateId z) { character(a, z); }, end);
  b_.byte(end, '"', to);
}

/// One character, with any escape that JSON knows.
void JsonText::character(StateId from, StateId to) {
  b_.chars(from, unescaped(), to, Encoding::utf8);
  const StateId escape = b_.state(), u = b_.state();
  b_.byte(from, '\\', escape);
  for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) b_.byte(escape, c, to);
  b_.byte(escape, 'u', u);
  unicode_escape(b_, u, to);
}

void JsonText::fill_number(StateId from, StateId to) {
  constexpr int kExponent = 2;
  const StateId positive = b_.state(), whole = b_.state(), point = b_.state(), decimal = b_.state(), e = b_.state(),
                exponent = b_.state();
  b_.jump(from, positive);
  b_.byte(from, '-', positive);
  whole_number(b_, positive, kMostDigits, whole);
  b_.byte(whole, '.', point);
  digits(b_, point, 1, kMostDigits, decimal);
  b_.jump(whole, decimal);
  b_.byte(decimal, 'e', e);
  b_.byte(decimal, 'E', e);
  b_.byte(e, '+', exponent);
  b_.byte(e, '-', exponent);
  b_.jump(e, exponent);
  digits(b_, exponent, 1, kExponent, to);
  b_.jump(decimal, to);
}

void JsonText::fill_integer(StateId from, StateId to) {
  const StateId positive = b_.state();
  b_.jump(from, positive);
  b_.byte(from, '-', positive);
  whole_number(b_, positive, kMostDigits, to);
}

std::string JsonText::quoted(const std::string& text) { return OrderedJson(text).dump(); }

void JsonText::value(StateId from, const OrderedJson& value, StateId to) {
  if (!value.is_structured()) return b_.literal(from, value.dump(), to);
  const char first = value.is_array() ? '[' : '{', last = value.is_array() ? ']' : '}';
  StateId at = b_.state();
  open(from, first, at);
  if (value.empty()) return b_.byte(at, last, to);
  bool begun = false;
  for (const auto& [key, item] : value.items()) {
    if (std::exchange(begun, true)) {
      const StateId next = b_.state();
      comma(at, next);
      at = next;
    }
    if (value.is_object()) {
      const StateId after_key = b_.state(), before_value = b_.state();
      b_.literal(at, quoted(key), after_key);
      colon(after_key, before_value);
      at = before_value;
    }
    const StateId after = b_.state();
    this->value(at, item, after);
    at = after;
  }
  close(at, last, to);
}

void JsonText::other_key(StateId from, const std::set<std::string>& names, StateId to) {
  if (names.empty()) return b_.call(from, string(), to);
  // A machine for one canonical string is walked together with the trie of the names.
  Builder one;
  const RuleId rule = one.rule("key");
  const StateId begin = one[rule].start;
  one.chars(begin, CharSet::all(), begin, Encoding::json);
  one.byte(begin, 'x', one[rule].end);  // keeps the machine from being empty
  const auto machine = one.finish(rule);

  struct Trie {
    std::map<std::uint8_t, std::size_t> next;
    bool ends = false;
  };
  std::vector<Trie> trie(1);
  for (const auto& name : names) {
    std::size_t at = 0;
    const std::string text = quoted(name);
    for (std::size_t i = 1; i + 1 < text.size(); ++i) {
      const auto [it, fresh] = trie[at].next.try_emplace(static_cast<std::uint8_t>(text[i]), trie.size());
      at = it->second;
      if (fresh) trie.emplace_back();
    }
    trie[at].ends = true;
  }
  constexpr std::size_t kFree = ~std::size_t{0};  // no name begins like this
  std::map<std::pair<StateId, std::size_t>, StateId> states;
  std::vector<std::pair<StateId, std::size_t>> todo;
  const auto state_of = [&](StateId s, std::size_t node) {
    const auto [it, fresh] = states.try_emplace({s, node}, 0);
    if (fresh) {
      it->second = b_.state();
      todo.emplace_back(s, node);
    }
    return it->second;
  };
  b_.byte(from, '"', state_of(begin, 0));
  while (!todo.empty()) {
    const auto [s, node] = todo.back();
    todo.pop_back();
    const StateId here = states.at({s, node});
    if (s == begin && (node == kFree || !trie[node].ends)) b_.byte(here, '"', to);
    for (const ByteEdge& e : machine->bytes[s]) {
      if (e.to == machine->rules[0].end) continue;
      int first = e.first;
      const auto free_up_to = [&](int last) {
        if (first <= last)
          b_.bytes(here, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last), state_of(e.to, kFree));
      };
      if (node != kFree)
        for (auto it = trie[node].next.lower_bound(e.first); it != trie[node].next.end() && it->first <= e.last; ++it) {
          free_up_to(it->first - 1);
          b_.bytes(here, it->first, it->first, state_of(e.to, it->second));
          first = it->first + 1;
        }
      free_up_to(e.last);
    }
  }
}

}  // namespace hpcdl::infer::grammar
