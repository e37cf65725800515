//! Where an engine group stands.

/// The life of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupLife {
    /// Not every engine has come yet, and none was lost.
    Waiting,
    /// Every rank serves.
    Ready,
    /// Some ranks serve.
    Degraded,
    /// A rank was lost, and nothing can be served.
    Lost,
    /// The same, and a lost rank is about to come back.
    Returning,
}

impl GroupLife {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Ready, Self::Degraded, Self::Lost, Self::Returning];

    /// The word for operators and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Lost => "lost",
            Self::Returning => "returning",
        }
    }
}
