// Asking a process for its stack: peers do so when it is late, `allfold doctor` does so from outside.
#pragma once

#include <string>

#include "shared/directory.hpp"
#include "shared/wait.hpp"

namespace allfold {

// The answer of the process, or nothing if it does not answer in time: it is stopped, or holds its interpreter's lock,
// or has no thread that answers.
std::string ask(Directory& directory, Clock::duration at_most);

// For the process itself: the number of the next question after `seen`, or 0 when there will be no more.
uint64_t await_question(Directory& directory, uint64_t seen);
void give_answer(Directory& directory, uint64_t question, const std::string& text);
void end_questions(Directory& directory);

}  // namespace allfold
