# Bookings that are made once, in Rails, behind the gateway of keylatch. It is a whole application in one file.
#
#   apt-get install ruby-actionpack ruby-railties puma
#   puma --port 3001
#   keylatch --config keylatch.toml
#   curl -i localhost:7070/bookings -H 'Idempotency-Key: seat-17' -H 'Content-Type: application/json' -d '{"seat":"12a"}'
#
# Sent twice, the same request makes one booking, and reads the same answer.

require "logger"
require "rails"
require "action_controller/railtie"

class Theatre < Rails::Application
  config.eager_load = false
  config.secret_key_base = ENV.fetch("SECRET_KEY_BASE", "of an example")
  config.logger = Logger.new($stderr)
  routes.append { resources :bookings, only: %i[create index] }
end

class BookingsController < ActionController::API
  BOOKINGS = {}
  MUTEX = Mutex.new

  def create
    key, fence = request.headers["Idempotency-Key"], request.headers["Idempotency-Fence"].to_i
    # A run that another one has overtaken changes nothing: its fencing token is smaller.
    MUTEX.synchronize do
      return head :conflict if BOOKINGS.key?(key) && BOOKINGS[key][:fence] >= fence

      BOOKINGS[key] = { seat: params.require(:seat), fence: fence }
    end
    render json: { seat: params[:seat] }, status: :created
  end

  def index
    render json: MUTEX.synchronize { BOOKINGS.values.map { |booking| booking[:seat] } }
  end
end

Theatre.initialize!
run Theatre
