#pragma once
// The exceptions of the library. `Error` is for what a user can cause or fix: it says what was expected, what was found
// and what to do, in the form "[area] ...". Programmer mistakes assert. A library never exits the process.

#include <stdexcept>

namespace hpcdl {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Errors on the command line or in a config file: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

}  // namespace hpcdl
