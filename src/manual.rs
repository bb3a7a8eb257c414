//! What a shell completes the arguments by, and the manual: the library makes both of the help
//! texts.
//!
//! Only a build with the feature `manual` has the two commands. Tested in `tests/cli/commands.rs`.

use std::io::Write as _;

use clap::Subcommand;
use clap_complete::Shell;
use clap_mangen::Man;
use keylatch::error::Error;

#[derive(Debug, Subcommand)]
pub(crate) enum ManualCommand {
    /// Print what lets a shell complete the arguments of keylatch.
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual, for `man`.
    Man,
}

impl ManualCommand {
    /// Prints what it is asked for of a program.
    pub(crate) fn print(self, mut program: clap::Command) -> Result<(), Error> {
        let mut text = Vec::new();
        match self {
            Self::Completions { shell } => {
                clap_complete::generate(shell, &mut program, env!("CARGO_BIN_NAME"), &mut text);
            }
            Self::Man => {
                program.build();
                Man::new(program.clone()).render(&mut text)?;
                render_subcommands(&program, &mut text)?;
            }
        }
        Ok(std::io::stdout().write_all(&text)?)
    }
}

/// Adds the manuals of the subcommands, one after the other.
fn render_subcommands(command: &clap::Command, text: &mut Vec<u8>) -> Result<(), Error> {
    for subcommand in command.get_subcommands().filter(|one| one.get_name() != "help") {
        let manual = Man::new(subcommand.clone());
        manual.render_name_section(text)?;
        manual.render_synopsis_section(text)?;
        manual.render_description_section(text)?;
        manual.render_options_section(text)?;
        manual.render_extra_section(text)?;
        render_subcommands(subcommand, text)?;
    }
    Ok(())
}
