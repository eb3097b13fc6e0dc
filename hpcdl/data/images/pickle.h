#pragma once
// Reads Python pickles of protocol 2 as far as the CIFAR archives need it: dictionaries, lists, tuples, numbers,
// strings and NumPy arrays of bytes. A pickle is a program for a small virtual machine that may call any function; this
// one calls nothing. It accepts three fixed names (those that rebuild an array, its dtype, and the strings that Python
// 3 writes) and refuses all other names and instructions with an error.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hpcdl::data::pickle {

struct Value;
using Ref = std::shared_ptr<Value>;

struct None {};
struct Array {  // of unsigned bytes, row by row
  std::vector<std::int64_t> shape;
  std::string data;
};
struct List {
  std::vector<Ref> items;
};
struct Tuple {
  std::vector<Ref> items;
  int depth = 1;  // of tuples in tuples
};
struct Dict {
  std::vector<std::pair<Ref, Ref>> items;
};
struct Dtype {
  std::string name;
};
enum class Name { reconstruct, ndarray, dtype, encode };  // the Python objects that a pickle may name

struct Value {
  std::variant<None, bool, std::int64_t, std::string, List, Tuple, Dict, Array, Dtype, Name> v;
};

/// `from` names the file in errors. Throws Error for anything that is incomplete or unknown.
Ref read(std::string_view bytes, const std::string& from);

/// The entry of a dictionary, or null.
const Value* find(const Value& dict, std::string_view key);

}  // namespace hpcdl::data::pickle
