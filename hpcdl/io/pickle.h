#pragma once
// Reads Python pickles of protocols 2 to 5 as data. A pickle is a program for a small virtual machine that may call any
// function; this machine calls nothing. The caller lists the names that he understands. Making an object of such a name
// and setting its state becomes a description of the object, and every other name or instruction is an error.

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hpcdl::io::pickle {

struct Value;
/// Owned by the Document. The same value may be in many places, even within itself.
using Ref = const Value*;
using Items = std::vector<std::pair<Ref, Ref>>;

struct None {};
struct Text {  // also the byte strings of Python 2
  std::string_view text;
};
struct Bytes {
  std::string_view bytes;
};
struct List {
  std::vector<Ref> items;
};
struct Tuple {
  std::vector<Ref> items;
};
struct Dict {
  Items items;
};
/// One of the names that the caller knows: "torch.Size".
struct Global {
  std::string_view name;
};
/// What calling NAME(arguments) would have made, with the state and the items that were then given to it.
struct Object {
  std::string_view name;
  Ref arguments = nullptr;  // a Tuple
  Ref state = nullptr;      // null: none
  Items items;
};
/// An object that is stored elsewhere.
struct Persistent {
  Ref id;
};

struct Value {
  std::variant<None, bool, std::int64_t, double, Text, Bytes, List, Tuple, Dict, Global, Object, Persistent> v;

  template <class T> const T* as() const { return std::get_if<T>(&v); }
  /// The arguments of an object of this name; null if it is anything else.
  const std::vector<Ref>* made_by(std::string_view name) const;
};

/// What a pickle describes. Its strings are views into the bytes that it was read from.
class Document {
 public:
  const Value& root() const { return *root_; }

 private:
  friend class Machine;
  std::deque<Value> values_;
  Ref root_ = nullptr;
};

inline constexpr std::size_t kMostValues = std::size_t{1} << 24;  // of a document, and remembered ones
inline constexpr std::size_t kMostMarks = 64;                     // containers that are begun and not ended

/// `from` names the file in errors, which also give the position. `known`: names in memory that outlives the result.
Document read(std::string_view bytes, const std::string& from, std::span<const std::string_view> known,
              std::size_t most_values = kMostValues);

/// The entry of a dictionary under a text; null if there is none, or if it is no dictionary.
Ref find(const Value& dict, std::string_view key);

}  // namespace hpcdl::io::pickle
